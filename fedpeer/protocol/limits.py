"""Every limit of the protocol, with its unit and its reason. Nothing else in the project bounds what travels.

First numbers by themselves; then what each port takes (`MARKET_PORT`, `PUBLIC_PORT`, the local ones), and what each
method of each service takes (`METHODS`), those of libraries included: a method without a line there is not served.
"""

from dataclasses import dataclass
from datetime import timedelta

from mechanism import records, terms

#: Bytes of model data in one frame. Each costs the coordinator a turn of its event loop, and of a thread where it is
#: received, so that larger frames make uploads faster. When everybody fetches at once, each stream buffers one.
FRAME_BYTES = 2 << 20

#: Bytes of model data in one frame of a fetch that asks for no size: participants of older versions take no more.
PLAIN_FRAME_BYTES = 1 << 20

#: Least bytes of a frame, where larger ones never get through: two seconds of the slowest link.
MIN_FRAME_BYTES = 64 << 10

#: Bytes of one message. A frame with its envelope fits; nothing else is meant to come near.
MAX_MESSAGE_BYTES = FRAME_BYTES + (64 << 10)

#: Bytes of tasks in one page of a list, where it has more than one: half of a message.
MAX_PAGE_BYTES = 1 << 20

#: Bytes of a safetensors header: a thousand tensors take about 100 KiB.
MAX_MODEL_HEADER_BYTES = 4 << 20

#: Tensors of one model, labels of a reference distribution, and characters of a decimal or rational.
MAX_TENSORS, MAX_LABELS = terms.MAX_TENSORS, terms.MAX_LABELS
MAX_NUMBER_CHARACTERS = records.MAX_NUMBER_CHARACTERS

#: Dimensions of a tensor; NumPy's own limit is 64.
MAX_DIMENSIONS = 16

#: Characters of a tensor's name, as `mechanism.terms.TensorSpec` holds it.
MAX_TENSOR_NAME = 256

#: Bytes of a statement: counts of 2,000 labels take up to 17 each, the rest a kilobyte. One entry of the ledger
#: (64 KiB) holds it.
MAX_STATEMENT_BYTES = 40 << 10

#: Characters of the reason that a participant gives for a failure; enough for the end of a traceback.
MAX_REASON_CHARACTERS = 2_000

#: Bytes of a PEM certificate signing request for a P-256 key, with room for extensions that are ignored.
MAX_SIGNING_REQUEST_BYTES = 8 << 10

#: Random bytes of an invitation token: not to be guessed.
TOKEN_BYTES = 32

#: How long an invitation can be used: long enough for an e-mail to be read after a holiday.
TOKEN_LIFETIME = timedelta(days=14)

#: How long a participant's certificate holds. Short, so that a lost key heals; longer than a task.
CERTIFICATE_LIFETIME = timedelta(days=90)

#: How long the coordinator's own certificate holds; the common limit of 398 days.
SERVER_CERTIFICATE_LIFETIME = timedelta(days=398)

#: How long the certificate authority holds.
AUTHORITY_LIFETIME = timedelta(days=3650)

#: Before the end of the server's certificate, and of an authority, the operator is warned for so long: a holiday and a
#: maintenance window; twice the life of a participant's certificate, in which everybody meets the next authority.
SERVER_CERTIFICATE_WARNING = timedelta(days=30)
AUTHORITY_WARNING = timedelta(days=180)

#: Clocks may differ by this much when a fresh certificate is first used.
CLOCK_SKEW = timedelta(minutes=5)

#: Streams that one identity may have open at once: in each of some ten tasks a Watch, an upload or a fetch, and
#: what a lost connection has left.
MAX_STREAMS_PER_IDENTITY = 32

#: Bytes of an upload that may be on their way without having been read: they fill a line of 250 Mbit/s at 50 ms. gRPC
#: would let a stream's window grow with the bandwidth, to many MiB.
UPLOAD_WINDOW_BYTES = 3 << 19

#: Bytes of any other stream that may be on their way without having been read: what HTTP/2 begins with.
PLAIN_WINDOW_BYTES = 64 << 10

#: Uploads that the coordinator takes in at once; the windows and frames of a fast one take some 20 MiB. Others wait
#: before they send (see the protocol), whose windows would fill as well.
MAX_CONCURRENT_UPLOADS = 5

#: Requests that one identity may make in one second, averaged over ten.
MAX_REQUESTS_PER_SECOND = 50

#: Seconds between keepalive pings: below the idle timeout of common proxies (60 s).
KEEPALIVE_SECONDS = 30

#: Seconds after which an unanswered ping means a dead peer.
KEEPALIVE_TIMEOUT_SECONDS = 10

#: Seconds that an upload may go without a frame before its stream is closed; it can be resumed. A frame takes 64 of
#: them at the slowest rate.
UPLOAD_IDLE_SECONDS = 90

#: Bytes a second below which an upload gives its place to those who wait; it can be resumed. A poor mobile link.
MIN_UPLOAD_BYTES_PER_SECOND = 32 << 10

#: Models that one participant may begin to upload in one round: retries with changed content are rare, and each
#: leaves a row.
MAX_UPLOADS_PER_ROUND = 8

#: Participants that one process has connections of at the same time; a task may have more, with more fronts. Each
#: watches over a connection of its own, which takes some 50 kB and one of `OPEN_FILES`.
PARTICIPANTS_AT_ONCE = 10_000

#: Rounds of one task: `open` reserves each in one transaction, and hashes the chain of seeds.
MAX_ROUNDS = terms.MAX_ROUNDS

#: Seconds that a phase may last: a year. Beyond it a deadline is a mistake, and at last no date at all.
MAX_PHASE_SECONDS = 366 * 86_400

#: Seconds from a connection to the end of its handshake, the HTTP/2 settings included: a slow link needs two, and
#: a client that opens connections and stalls holds each no longer than this.
HANDSHAKE_SECONDS = 20

#: Seconds that a call may wait until the coordinator looks at it, when ten thousand make theirs at the same moment:
#: what a participant has patience for. gRPC would cancel them after 30.
UNSEEN_SECONDS = 600

#: Seconds after which a connection without a call is closed; participants keep a Watch open, others reconnect.
IDLE_CONNECTION_SECONDS = 300

#: Seconds after which a client is asked for a new connection, so that everyone comes to a renewed server certificate
#: and balancers can spread the load; and seconds that its calls then have left. A Watch and an upload go on where
#: they were.
CONNECTION_AGE_SECONDS = 12 * 3600
CONNECTION_GRACE_SECONDS = 600

#: Open files that the service asks the system for: a connection of each participant of some large tasks, and
#: connections that stall until they are closed. Many systems start a process with 1,024.
OPEN_FILES = 65_536

#: Bytes that the streams of one identity may move in an hour, both ways: a model of 1 GiB fetched and sent every
#: two minutes. Without it one participant could fetch one model for ever, on the operator's line.
MAX_BYTES_PER_HOUR = 64 << 30

#: Seconds that an upload may hold its place while others wait, and the rate that earns it more: that of a common line.
#: A slower sender goes on after the others.
CONTENDED_SECONDS = 5.0
CONTENDED_BYTES_PER_SECOND = 1 << 20

#: Bytes that are left free on the disk whatever is announced: room for the database to go on.
RESERVE_BYTES = 64 << 20

#: Bytes of ledger entries in one message of a stream: one entry of the largest size, or a hundred usual ones. A
#: client that asks and does not read makes the coordinator keep one. And what is read in one transaction, bytes and
#: entries, so that a reader of the whole ledger delays nobody and 64 of them hold little memory.
LEDGER_MESSAGE_BYTES = 64 << 10
LEDGER_BATCH_BYTES = 512 << 10
LEDGER_BATCH_ENTRIES = 1_000

#: Characters of a sentence and of a field's name in a refusal, and fields named: all of it travels in HTTP/2 headers,
#: of which clients take 8 KiB.
MAX_REFUSAL_SENTENCE = 400
MAX_REFUSAL_FIELD = 100
MAX_REFUSAL_VIOLATIONS = 8

#: Seconds between two reports of progress by one participant in a round: a page that is looked at needs no more.
PROGRESS_SECONDS = 2.0

#: Seconds from a call's beginning until its message is there, where it has one: the largest takes 32 kB/s. A
#: client that opens calls and sends nothing holds each no longer than this.
MESSAGE_SECONDS = 30


@dataclass(frozen=True, slots=True)
class PortLimits:
    """What one gRPC port takes.

    Attributes:
        message_bytes: of one message, compressed or not; gRPC refuses a larger one by its announced length, and stops
            to decompress there.
        metadata_bytes: of the headers of one call, names and values.
        streams: calls that one connection may have open at once; more wait at the client.
        connections: open at once, those in their handshake included; more are closed at once.
        calls: open at once on all connections; more are refused before anything is read.
        window_bytes: of one stream that may be on their way without having been read.
        age_seconds, grace_seconds: after which a client is asked for a new connection, and the old one ended.
    """

    message_bytes: int
    metadata_bytes: int
    streams: int
    connections: int
    calls: int
    window_bytes: int
    age_seconds: int
    grace_seconds: int


#: Participants, each known by its certificate. Two connections and four calls for each of `PARTICIPANTS_AT_ONCE`.
MARKET_PORT = PortLimits(
    message_bytes=MAX_MESSAGE_BYTES,
    metadata_bytes=16 << 10,
    # A few unary calls besides the streams of one identity.
    streams=2 * MAX_STREAMS_PER_IDENTITY,
    connections=2 * PARTICIPANTS_AT_ONCE,
    calls=4 * PARTICIPANTS_AT_ONCE,
    window_bytes=UPLOAD_WINDOW_BYTES,
    age_seconds=CONNECTION_AGE_SECONDS,
    grace_seconds=CONNECTION_GRACE_SECONDS,
)

#: Anybody, so that the product of these numbers is what anybody can make the coordinator keep. The largest message is
#: a signing request with its token; a connection takes some 50 kB, a call some 20 kB and its window.
PUBLIC_PORT = PortLimits(
    message_bytes=16 << 10,
    metadata_bytes=8 << 10,
    # An auditor's pages, a platform's probe and somebody who looks around.
    streams=16,
    connections=1_000,
    # All that METHODS allows at once, and as many that are being refused.
    calls=1_200,
    window_bytes=PLAIN_WINDOW_BYTES,
    # A client that reads nothing of what it asked for is dropped after an hour; an auditor reads the ledger in pages.
    age_seconds=3600,
    grace_seconds=60,
)


@dataclass(frozen=True, slots=True)
class LocalLimits:
    """What a port takes that is not gRPC's and that only this machine should reach.

    Attributes:
        request_bytes: of one request.
        connections: open at once; more are closed at once.
        seconds: that a connection may take in all.
    """

    request_bytes: int
    connections: int
    seconds: int


#: Prometheus' page: one scraper or two, each by a GET with its usual headers.
METRICS_PORT = LocalLimits(request_bytes=16 << 10, connections=16, seconds=30)

#: The socket by which commands notify the service and the console asks it: one word. Looking takes a moment, with
#: thousands of tasks seconds.
CONTROL_SOCKET = LocalLimits(request_bytes=16, connections=16, seconds=60)


@dataclass(frozen=True, slots=True)
class MethodLimits:
    """What one method takes, on each port that serves it.

    Attributes:
        request_bytes: of one request message.
        messages: request messages of one call; None: until what they carry is whole.
        seconds: after which a call is ended; None: it ends with what it watches or carries.
        per_caller: calls that one caller may have open at once: a participant, or an address on the public port.
        at_once: calls that all callers together may have open.
        per_second: calls of one caller in a second, averaged over ten; each further message counts as a call, frames of
            a model apart, which `MAX_BYTES_PER_HOUR` bounds.
    """

    request_bytes: int
    messages: int | None = 1
    seconds: float | None = 60
    per_caller: int = MAX_STREAMS_PER_IDENTITY
    at_once: int = PARTICIPANTS_AT_ONCE
    per_second: float = MAX_REQUESTS_PER_SECOND


#: Bytes of a request that names a task, a submission, a few numbers: ids have 64 characters.
_NAMES = 1 << 10

#: Every method of every service, by its full name.
METHODS: dict[str, MethodLimits] = {
    # An answer carries the terms of tasks; nobody needs it more often than every few seconds.
    "/fedpeer.v1.Market/ListTasks": MethodLimits(_NAMES, per_caller=8, per_second=20),
    # Asked for by everybody when a round opens.
    "/fedpeer.v1.Market/GetTask": MethodLimits(_NAMES),
    # One a task and participant; open until the task ends.
    "/fedpeer.v1.Market/Watch": MethodLimits(_NAMES, seconds=None),
    # A page of names from memory; few look.
    "/fedpeer.v1.Market/ListSelected": MethodLimits(_NAMES, seconds=30, per_caller=8, at_once=64),
    # A statement and its signature.
    "/fedpeer.v1.Market/SubmitEffort": MethodLimits(MAX_STATEMENT_BYTES + _NAMES),
    # Ends with its model: a gibibyte over the slowest link takes nine hours. Its frames are those that it asks for.
    "/fedpeer.v1.Market/FetchModel": MethodLimits(_NAMES, seconds=None),
    "/fedpeer.v1.Market/GetUpload": MethodLimits(_NAMES),
    # A header, then frames; places, rates and idle times are those of uploads above.
    "/fedpeer.v1.Market/SubmitModel": MethodLimits(MAX_MESSAGE_BYTES, messages=None, seconds=None),
    "/fedpeer.v1.Market/GetAudits": MethodLimits(_NAMES),
    # Reads a year's verdicts on one participant.
    "/fedpeer.v1.Market/GetReputation": MethodLimits(_NAMES, per_caller=4),
    "/fedpeer.v1.Market/Appeal": MethodLimits(4 * MAX_REASON_CHARACTERS + _NAMES),
    # A reason of 2,000 characters takes four bytes each at most.
    "/fedpeer.v1.Market/ReportFailure": MethodLimits(4 * MAX_REASON_CHARACTERS + _NAMES),
    # Numbers that are kept in memory, the last of each participant.
    "/fedpeer.v1.Market/ReportProgress": MethodLimits(_NAMES, seconds=10, per_caller=4, per_second=2),
    "/fedpeer.v1.Market/GetReceipt": MethodLimits(_NAMES),
    "/fedpeer.v1.Market/GetSettlement": MethodLimits(_NAMES),
    # A participant's own, in parts; nobody needs them more often than once a round.
    "/fedpeer.v1.Market/GetOpenings": MethodLimits(_NAMES, seconds=600, per_caller=4, at_once=64),
    # Counts of 2,000 labels take 9 bytes each at most.
    "/fedpeer.v1.Market/OpenDispute": MethodLimits(32 << 10),
    # A signing request, its token and name. A hundred of one firm may come from one address.
    "/fedpeer.v1.Enrolment/Enroll": MethodLimits(
        MAX_SIGNING_REQUEST_BYTES + _NAMES, per_caller=64, at_once=128
    ),
    # A few certificates from memory; services of one firm ask every few minutes.
    "/fedpeer.v1.Enrolment/GetAuthority": MethodLimits(_NAMES, seconds=30, per_caller=64, at_once=128),
    # Signs a head where there are new entries.
    "/fedpeer.v1.Ledger/GetCheckpoint": MethodLimits(_NAMES, seconds=30, per_caller=16, at_once=128),
    # Each keeps half a megabyte while it reads. An auditor asks for pages, one after the other.
    "/fedpeer.v1.Ledger/GetEntries": MethodLimits(_NAMES, seconds=600, per_caller=8, at_once=64),
    # A page of the enrolments and revocations; everybody looks after a claim and when a round is paid.
    "/fedpeer.v1.Ledger/GetKeys": MethodLimits(
        _NAMES, seconds=30, per_caller=16, at_once=PARTICIPANTS_AT_ONCE
    ),
    # Proofs read a few dozen hashes.
    "/fedpeer.v1.Ledger/GetInclusionProof": MethodLimits(_NAMES, seconds=30, per_caller=16, at_once=128),
    "/fedpeer.v1.Ledger/GetConsistencyProof": MethodLimits(_NAMES, seconds=30, per_caller=16, at_once=128),
    "/fedpeer.v1.Ledger/GetBalance": MethodLimits(_NAMES, seconds=30, per_caller=16, at_once=128),
    # A platform's probe, every few seconds; it must get through while others watch.
    "/grpc.health.v1.Health/Check": MethodLimits(256, seconds=10, per_caller=8, at_once=64),
    "/grpc.health.v1.Health/List": MethodLimits(256, seconds=10, per_caller=8, at_once=64),
    # Balancers hold one each; they open it again when it ends.
    "/grpc.health.v1.Health/Watch": MethodLimits(256, seconds=3600, per_caller=4, at_once=64),
    # A person with grpcurl: a dozen questions, each answered from memory and echoed.
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": MethodLimits(
        512, messages=200, seconds=60, per_caller=2, at_once=16, per_second=20
    ),
}
