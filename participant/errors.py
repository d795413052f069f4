"""What can go wrong for a participant. Each message says what was wrong, what was expected and what to do.

ParticipantError(Exception)
 +- ConfigurationError            a setting, a key or a certificate file that cannot be used
 +- TransportError                the coordinator was not reached; nothing was refused
 |   +- UnreachableError          no answer at the address
 |   |   +- BusyError             somebody listens, and has no time for a handshake
 |   +- TLSError                  the handshake failed: another authority, or no TLS there
 |   |   +- ServerNameError       the coordinator's certificate is for another name
 |   |   +- CertificateExpiredError   a certificate of either side is out of date
 |   +- LostConnectionError       it was reached, then lost for longer than the client's patience
 +- RefusedError                  the coordinator answered no; nothing has changed there
 |   +- NotEnrolledError          no certificate, a revoked one, or an invitation that does not hold
 |   +- WrongNameError            a message under another participant's id
 |   +- NotSelectedError          the learner chose others
 |   +- NotFoundError             no such task or submission, not yet there, or no longer
 |   +- WrongStateError           too early, too late, or for another round
 |   |   +- WrongRoundError
 |   |   +- TaskFullError
 |   |   +- IdentityBarredError
 |   |   +- TaskEndedError
 |   +- InvalidSubmissionError    fields, signature or nonce do not hold
 |   |   +- DrawShareError        a draw share that is not of the claim's chain: the chain was lost, say
 |   |   +- ModelRejectedError    the model breaks the task's contract; `reasons` lists how
 |   +- ConflictError             the submission id already stands for another content
 |   +- SessionTakenOverError     another process with this identity has taken this one's place
 |   +- LimitError                too large, too often, or the coordinator is out of space
 |   +- CoordinatorFaultError     the coordinator failed; give its operator the request id
 +- ForeignKeyError               the log holds a key for this participant's name that is not its own, or hides keys
 +- DeclinedError                 the owner's policy does not accept the task's terms; nothing was sent
 +- TaskError                     the participant's own Task object
 |   +- EffortError               an effort, a curve or a cost that cannot be used
 |   +- CountsChangedError        the counts differ from those that were claimed
 |   +- PrivacyLimitError         the round would tell more of the data than the owner allows; nothing was trained
 |   +- SubmittedError            the round has another model already
 |   +- WeightsError              trained weights that do not fit the task's contract
 |   +- TrainingError             `train` raised, or its process died
 +- StateError                    the participant's own folder
     +- SharesLostError           the journal lacks the claim that stands, and with it the draw shares
     +- JournalError              the journal is locked, damaged, on a failing disk or of another version
     +- DiskFullError             no space for a model or the journal
"""

from collections.abc import Sequence

from fedpeer.protocol.errors import Code, Refusal

__all__ = [
    "BusyError",
    "CertificateExpiredError",
    "ConfigurationError",
    "ConflictError",
    "CoordinatorFaultError",
    "CountsChangedError",
    "DeclinedError",
    "DiskFullError",
    "DrawShareError",
    "EffortError",
    "ForeignKeyError",
    "ForeignKeyWarning",
    "IdentityBarredError",
    "InvalidSubmissionError",
    "JournalError",
    "LimitError",
    "LostConnectionError",
    "ModelRejectedError",
    "NotEnrolledError",
    "NotFoundError",
    "NotSelectedError",
    "ParticipantError",
    "PrivacyLimitError",
    "RefusedError",
    "ServerNameError",
    "SessionTakenOverError",
    "SharesLostError",
    "StateError",
    "SubmittedError",
    "TLSError",
    "TaskEndedError",
    "TaskError",
    "TaskFullError",
    "TrainingError",
    "TransportError",
    "UnreachableError",
    "WeightsError",
    "WrongNameError",
    "WrongRoundError",
    "WrongStateError",
    "refused",
]


class ParticipantError(Exception):
    """Base of everything that this package raises for a reason outside its own code."""


class ConfigurationError(ParticipantError):
    """A setting, a key or a certificate file that cannot be used."""


class TransportError(ParticipantError):
    """The coordinator was not reached. Nothing was refused; the call can be made again."""


class UnreachableError(TransportError):
    """Nothing answers at the address: a wrong host or port, a firewall, or a coordinator that is down."""


class BusyError(UnreachableError):
    """Somebody listens at the address and has no time for a handshake: a coordinator that starts or has much to do."""


class TLSError(TransportError):
    """The TLS handshake failed."""


class ServerNameError(TLSError):
    """The coordinator's certificate is for another name than the one that was called."""


class CertificateExpiredError(TLSError):
    """A certificate of either side is not valid at this moment."""


class LostConnectionError(TransportError):
    """The coordinator was reached, then lost for longer than the client waits."""


#: The error that stands for each code of the coordinator's.
_KINDS: dict[Code, "type[RefusedError]"] = {}


class RefusedError(ParticipantError):
    """The coordinator refused a call; nothing has changed there.

    Attributes:
        code: the reason, from the catalogue in `fedpeer.protocol.errors`.
        reasons: the fields at fault and what is wrong with each, as sentences.
        request_id: what the coordinator's log calls the request; may be empty.
    """

    def __init_subclass__(cls, codes: Sequence[Code] = ()) -> None:
        _KINDS.update(dict.fromkeys(codes, cls))

    def __init__(self, refusal: Refusal) -> None:
        self.code = refusal.code
        self.reasons: tuple[str, ...] = tuple(f"{v.field}: {v.description}" for v in refusal.violations)
        self.request_id = refusal.request_id
        super().__init__(_with_reasons(str(refusal), self.reasons))


class NotEnrolledError(
    RefusedError, codes=[Code.CERTIFICATE_REQUIRED, Code.CERTIFICATE_REVOKED, Code.INVITATION_INVALID]
):
    """The coordinator does not know the caller: no certificate, a revoked one, or an invalid invitation."""


class WrongNameError(RefusedError, codes=[Code.WRONG_PARTICIPANT]):
    """A message under another participant's id than the certificate's."""


class NotSelectedError(RefusedError, codes=[Code.NOT_SELECTED]):
    """The learner selected others to train."""


class NotFoundError(
    RefusedError,
    codes=[Code.SERVICE_UNKNOWN, Code.TASK_UNKNOWN, Code.SUBMISSION_UNKNOWN, Code.NOT_YET, Code.EXPIRED],
):
    """No such task or submission; or it is not there yet, or no longer (`code` tells them apart)."""


class WrongStateError(RefusedError, codes=[Code.WRONG_STATE, Code.TERMS_CHANGED]):
    """The task is in another state than the call needs."""


class WrongRoundError(WrongStateError, codes=[Code.WRONG_ROUND]):
    """The message is for another round than the current one."""


class TaskFullError(WrongStateError, codes=[Code.TASK_FULL]):
    """All places of the task are taken."""


class IdentityBarredError(WrongStateError, codes=[Code.IDENTITY_BARRED]):
    """The task does not take this identity: as many of its organisation have claimed as the terms allow, or it takes
    pseudonyms that were made for it, and no others."""


class TaskEndedError(WrongStateError, codes=[Code.TASK_ENDED]):
    """The task is closed or cancelled."""


class InvalidSubmissionError(
    RefusedError, codes=[Code.FIELD_INVALID, Code.SIGNATURE_INVALID, Code.NONCE_UNKNOWN, Code.FRAMES_INVALID]
):
    """Fields, signature or nonce of a submission do not hold."""


class DrawShareError(InvalidSubmissionError, codes=[Code.DRAW_SHARE_INVALID]):
    """The draw share of a model is not of the chain that the claim committed to; the chain was lost, say."""


class ModelRejectedError(InvalidSubmissionError, codes=[Code.MODEL_INVALID]):
    """The model does not keep the task's contract; `reasons` says how."""


class ConflictError(RefusedError, codes=[Code.SUBMISSION_CONFLICT]):
    """The submission id already stands for another content."""


class SessionTakenOverError(RefusedError, codes=[Code.SESSION_TAKEN_OVER]):
    """Another process with this identity watches the task now. This one ends, and does not take it back."""


class LimitError(
    RefusedError, codes=[Code.TOO_LARGE, Code.QUOTA_EXCEEDED, Code.STORAGE_FULL, Code.OVERLOADED]
):
    """Too large, too often, or the coordinator has no space."""


class CoordinatorFaultError(RefusedError, codes=[Code.STORAGE_UNAVAILABLE, Code.DRAINING, Code.INTERNAL]):
    """A fault of the coordinator; its operator finds it by `request_id`."""


class ForeignKeyError(ParticipantError):
    """The log holds a key for this participant's name that is not its own, has revoked its own, or hides keys.

    Each holder of such a key can claim and send models in this participant's name.
    """


class ForeignKeyWarning(UserWarning):
    """What `ForeignKeyError` says, where the participant continues all the same."""


class DeclinedError(ParticipantError):
    """The owner's policy does not accept a task's terms. Nothing was trained or sent, and nothing agreed to.

    Attributes:
        task_id: of the task.
        reasons: one sentence for each part of the policy that is not kept.
    """

    def __init__(self, task_id: str, reasons: Sequence[str]) -> None:
        self.task_id = task_id
        self.reasons = tuple(reasons)
        super().__init__(
            f"task {task_id} is declined by this participant's policy: {'; '.join(self.reasons)}"
        )


class TaskError(ParticipantError):
    """The participant's own `Task` object gave something that cannot be used.

    Attributes:
        public: what the coordinator learns, and with it everybody, for ever: reasons stand in the ledger. The
            message itself where a task raises this error; only the kind of any other exception, whose text may
            quote the data.
    """

    def __init__(self, message: str, public: str | None = None) -> None:
        super().__init__(message)
        self.public = message if public is None else public


class EffortError(TaskError):
    """An effort outside [0, 1], a curve that increases or a cost that decreases."""


class CountsChangedError(TaskError):
    """The counts are not those that were claimed; training on other data would refute the claim."""


class PrivacyLimitError(TaskError):
    """A round's model would tell more of the data than the owner's limit allows; it is not trained."""


class SubmittedError(TaskError):
    """A model for a round that has another one already; the submission stands."""


class WeightsError(TaskError):
    """Trained weights that do not fit the task's model contract; `reasons` says how.

    Attributes:
        reasons: one sentence for each tensor at fault.
    """

    def __init__(self, message: str, reasons: Sequence[str] = (), public: str | None = None) -> None:
        super().__init__(_with_reasons(message, reasons), public)
        self.reasons = tuple(reasons)


class TrainingError(TaskError):
    """`Task.train` raised, or the process that it ran in died."""


class StateError(ParticipantError):
    """The participant's own state folder cannot be used."""


class SharesLostError(StateError):
    """A claim stands that this journal does not have, and with it the draw shares that models must reveal."""


class JournalError(StateError):
    """The journal is locked by another process, damaged, on a disk that fails, or written by a newer version."""


class DiskFullError(StateError):
    """No space is left for a model or the journal."""


def refused(refusal: Refusal) -> RefusedError:
    """The exception that stands for `refusal` in this tree."""
    return _KINDS.get(refusal.code, RefusedError)(refusal)


def _with_reasons(message: str, reasons: Sequence[str]) -> str:
    missing = [reason for reason in reasons if reason not in message]
    return message + (" " + "; ".join(missing) + "." if missing else "")
