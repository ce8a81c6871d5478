// SPDX-License-Identifier: MIT OR Apache-2.0
//! The texts that `--help` prints below the options of a verb. The lines are broken by hand,
//! because clap prints them unchanged.

pub(super) const EXIT_CODES: &str = "\
Exit codes:
  0    the verb succeeded
  1    there is no such record
  2    an argument or a setting is wrong; or the verb asks for confirmation, stdin is not a
       terminal, and `--yes` is missing
  3    the store does not answer
  4    the store, the state of the record or your answer to the question did not allow the
       operation; or `doctor` has found an error
  5    any other failure
  130  interrupted
`run` has its own exit codes: see `retryproof run --help`.";

pub(super) const GET: &str = "\
Examples:
  retryproof get nightly 2026-11-22
  retryproof get payments order-17 --caller alice --body
  retryproof get payments order-17 --shared --output json

Durations come from the store's clock, and the times beside them (UTC) from this machine's clock. A
record does not say when its work ended. `exit code` and `HTTP status` come from the stored result
of a command or of an HTTP handler. The record of a failed command is complete, too.";

pub(super) const LS: &str = "\
Examples:
  retryproof ls --scope payments --state in-progress
  retryproof ls --older-than PT1H --holder pod-7 --show-keys

Columns:
  STATE    `in progress`, or `lease over` (with `--state in-progress`, both are listed);
           `complete`, or `expired` (with `--state complete`, both are listed)
  HOLDER   the process that was granted the key last, even if it has ended since
  GRANTED  the time since that grant
  THEN     when the key will be free, or what the next call does
  TOKEN    the token for `release`, `resolve`, `forget` and `erase`";

pub(super) const STUCK: &str = "\
A holder extends its lease when half of the lease has passed. If the holder dies, its record is
therefore listed only when more than half of the lease has passed since the last heartbeat: with a
lease of 30 s, after 15 s. An empty list does not prove that all holders are alive. To list all
records in progress, use `ls --state in-progress`. For the columns, see `retryproof ls --help`.

By default, a holder is named HOST:PID. To see whether the holder is alive, look on that host:
  TZ=UTC ps -o pid,stat,lstart,args -p PID
If the process is gone, or started clearly after the grant, the holder is dead. If it exists but its
lease is over, it is paused (STAT contains T) or cut off from the store: stop it before you change
the record. If `retryproof run` was killed, processes that its command started may still be running.
In a container, HOST is the host name of the container: check whether that container still exists,
and run `ps` inside it.";

pub(super) const STATS: &str = "\
Totals (names in JSON have underscores):
  records      all records, including expired ones
  in progress  the records without a result, including those whose lease is over
  complete     the records with a result, including those that have expired
  store bytes  the space of all records. PostgreSQL: the table and its indexes, on disk. Other
               stores: an estimate from the keys, the notes and the results

Columns of --by-scope:
  IN PROGRESS  as above
  LEASE OVER   records in progress whose lease is over: the next call takes over
  COMPLETE     as above
  EXPIRED      complete records that have expired: the next call runs the work again
  VALUE BYTES  the stored results alone, as `value bytes` in `get`
  OLDEST       the time since the oldest grant of any record, in progress or complete

A store does not count duplicates, because a replay changes no record. To count them, use the metric
`idempotency.calls` with the outcome `replayed`, or the log.";

pub(super) const TOP: &str = "\
Examples:
  retryproof top
  retryproof top --interval PT10S --count 6 --output jsonl

Columns (names in JSON have underscores):
  IN PROGRESS   as in `stats`: the records without a result, including those whose lease is over
  STUCK         records in progress that `stuck` lists: no heartbeat for more than half of the
                lease. This number includes LEASE OVER of `stats --by-scope`
  LONGEST HELD  the time since the oldest grant of a record in progress; in JSON,
                `longest_held_ms`, or null if no record is in progress
  COMPLETE      as in `stats`: the records with a result, including those that have expired";

pub(super) const RELEASE: &str = "\
Example:
  retryproof release payments order-17 --token 1763857500000000 --reason \"pod-7 was deleted\"

If the lease is over, a release is not needed: the next call takes over. In it, RETRYPROOF_ATTEMPT
is `takeover`, so the next call can check what the dead holder did. After a release, the next call
is a first attempt (`first`) and skips this check. Release a record only if the work had no effect,
or if its effect may happen twice.";
