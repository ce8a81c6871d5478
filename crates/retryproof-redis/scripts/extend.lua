#!lua flags=allow-oom
-- SPDX-License-Identifier: MIT OR Apache-2.0
-- Extends the lease from now if the caller is the recorded owner, even after the lease has ended
-- (RUN-1, RUN-3).
-- KEYS: the record. ARGV: owner, lease in ms.
-- Returns 1 applied, 0 not the owner, 3 not a value that this store writes.
local head = redis.call('GETRANGE', KEYS[1], '0', '54')
if head == '' then
  return 0
end
local state, grace = string.sub(head, 1, 4), tonumber(string.sub(head, 41, 53))
if not grace or #head < 55
  or (state ~= 'rp2P' and state ~= 'rp2C' and state ~= 'rp2R' and state ~= 'rp2K') then
  return 3
end
if state ~= 'rp2P' or string.sub(head, 5, 20) ~= ARGV[1] then
  return 0
end
redis.call('PEXPIRE', KEYS[1], ARGV[2] + grace)
return 1
