#!lua flags=allow-oom
-- SPDX-License-Identifier: MIT OR Apache-2.0
-- Stores the result if the caller is the recorded owner, in time or late (CMP-1, CMP-2, CMP-3).
-- KEYS: the record, whose key is also the channel. ARGV: owner, ttl in ms, the record after its token:
-- zero grace, fingerprint, value.
-- Returns 1 applied, 2 already applied, 0 not the owner, 3 not a value that this store writes.
-- Numbers are text: Lua's would be printed and parsed again, which costs a tenth of this script.
local head = redis.call('GETRANGE', KEYS[1], '0', '50')
if head == '' then
  return 0
end
local state = string.sub(head, 1, 4)
if #head < 51 or (state ~= 'rp1P' and state ~= 'rp1T' and state ~= 'rp1C' and state ~= 'rp1R') then
  return 3
end
if state == 'rp1R' or string.sub(head, 5, 20) ~= ARGV[1] then
  return 0
end
if state == 'rp1C' then
  return 2
end
redis.call('SET', KEYS[1], 'rp1C' .. string.sub(head, 5, 36) .. ARGV[3], 'PX', ARGV[2])
-- Without the right to the channel the completion still succeeds, and waiters poll.
redis.pcall('PUBLISH', KEYS[1], 'C')
return 1
