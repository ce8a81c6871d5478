#!lua flags=allow-oom
-- SPDX-License-Identifier: MIT OR Apache-2.0
-- Stores the result if the caller is the recorded owner, even after the lease has ended (CMP-1,
-- CMP-2, CMP-3). The note about the holder stays (REC-2).
-- KEYS: the record, whose key is also the channel. ARGV: owner, zero grace and length of the
-- fingerprint; ttl in ms; fingerprint and value; and W if WAIT follows. A repeated completion then
-- writes the record again, unchanged: from Redis 7.2 on, WAIT waits only for the last write.
-- Returns 1 applied, 2 already applied, 0 not the owner, 3 not a value that this store writes.
-- Numbers are passed as text. A Lua number would be printed and parsed again, which costs a tenth of
-- the script's time.
local sub = string.sub
-- The header, and the longest note that this version writes.
local head = redis.call('GETRANGE', KEYS[1], '0', '118')
if head == '' then
  return 0
end
local state = sub(head, 1, 4)
if #head < 55 or (state ~= 'rp2P' and state ~= 'rp2C' and state ~= 'rp2R' and state ~= 'rp2K') then
  return 3
end
if state == 'rp2R' or state == 'rp2K' or sub(head, 5, 20) ~= sub(ARGV[1], 1, 16) then
  return 0
end
if state == 'rp2C' then
  if ARGV[4] then
    redis.call('SET', KEYS[1], redis.call('GET', KEYS[1]), 'KEEPTTL')
  end
  return 2
end
local high, low = string.byte(head, 39, 40)
local note = 55 + high * 256 + low
if note > 119 then
  head = redis.call('GETRANGE', KEYS[1], 0, note - 1)
end
if #head < note then
  return 3
end
local record = 'rp2C' .. sub(head, 5, 40) .. sub(ARGV[1], 17) .. sub(head, 56, note) .. ARGV[3]
redis.call('SET', KEYS[1], record, 'PX', ARGV[2])
-- Without the right to the channel, the completion still succeeds, and waiters poll.
redis.pcall('SPUBLISH', KEYS[1], 'C')
return 1
