"""Every limit of the protocol, with its unit and its reason. Nothing else in the project bounds what travels."""

from datetime import timedelta

#: Bytes of model data in one frame. Each costs the coordinator a turn of its event loop, and of a thread where it is
#: received, so that an upload is a tenth faster than by frames of 1 MiB; a bare stream would be fastest at those. When
#: everybody fetches at once, each stream buffers one.
FRAME_BYTES = 2 << 20

#: Bytes of model data in one frame of a fetch that asks for no size: participants of older versions take no more.
PLAIN_FRAME_BYTES = 1 << 20

#: Bytes of a frame that are gone down to where larger ones never get through: two seconds of the slowest link.
MIN_FRAME_BYTES = 64 << 10

#: Bytes of one message. A frame with its envelope fits; nothing else is meant to come near.
MAX_MESSAGE_BYTES = FRAME_BYTES + (64 << 10)

#: Bytes of a safetensors header: a thousand tensors take about 100 KiB.
MAX_MODEL_HEADER_BYTES = 4 << 20

#: Tensors of one model; large language models have some thousands.
MAX_TENSORS = 20_000

#: Dimensions of a tensor; NumPy's own limit is 64.
MAX_DIMENSIONS = 16

#: Characters of a tensor's name, as `mechanism.terms.TensorSpec` holds it.
MAX_TENSOR_NAME = 256

#: Labels of a reference distribution: one entry of the ledger (64 KiB) must hold counts and reference.
MAX_LABELS = 2_000

#: Characters of a decimal or rational on the wire: numerator and denominator of counts of 10^9 samples fit.
MAX_NUMBER_CHARACTERS = 128

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
#: what a lost connection has left behind.
MAX_STREAMS_PER_IDENTITY = 32

#: Bytes of an upload that may be on their way without having been read: they fill a line of 250 Mbit/s at 50 ms. gRPC
#: would let a stream's window grow with the bandwidth, to many MiB.
UPLOAD_WINDOW_BYTES = 3 << 19

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

#: Participants of one task: the SELECTED event names all of them, up to 66 bytes each, in one message.
MAX_PARTICIPANTS = 10_000

#: Rounds of one task: `open` reserves each in one transaction, and hashes the chain of seeds.
MAX_ROUNDS = 10_000

#: Seconds that a phase may last: a year. Beyond it a deadline is a mistake, and at last no date at all.
MAX_PHASE_SECONDS = 366 * 86_400

#: Seconds from a connection to the end of its handshake, the HTTP/2 settings included: a slow link needs two, and
#: whoever opens connections and stalls holds each no longer than this.
HANDSHAKE_SECONDS = 20

#: Seconds after which a connection without a call is closed; participants keep a Watch open, others reconnect.
IDLE_CONNECTION_SECONDS = 300

#: Seconds after which a connection is asked to be made anew, so that everyone comes to a renewed server certificate
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

#: Seconds that an upload may hold its place while others wait, and the rate that earns it more: a usual office line.
#: Whoever is slower goes on behind the others.
CONTENDED_SECONDS = 5.0
CONTENDED_BYTES_PER_SECOND = 1 << 20

#: Bytes that are left free on the disk whatever is announced: room for the database to go on.
RESERVE_BYTES = 64 << 20

#: Bytes of ledger entries in one message of a stream, well below the limit of a message; and entries read in one
#: transaction, so that a reader of the whole ledger holds nobody up.
LEDGER_BATCH_BYTES = 512 << 10
LEDGER_BATCH_ENTRIES = 1_000

#: Characters of a sentence and of a field's name in a refusal, and fields named: all of it travels in HTTP/2 headers,
#: of which clients take 8 KiB.
MAX_REFUSAL_SENTENCE = 400
MAX_REFUSAL_FIELD = 100
MAX_REFUSAL_VIOLATIONS = 8
