#!lua flags=allow-oom
-- SPDX-License-Identifier: MIT OR Apache-2.0
-- Stores the result, if the caller is the recorded owner, in time or late (CMP-1, CMP-2, CMP-3).
-- KEYS: the record, which names the channel too. ARGV: owner, ttl in ms, what stands behind the token: no grace, the fingerprint,
-- the value.
-- Answers 1 done, 2 done before, 0 lost, 3 not ours to read.
-- Numbers as text: Lua's would be printed and read again, which costs a tenth of this script.
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
-- A user without the right to the channel has still completed: waiters find it by polling.
redis.pcall('PUBLISH', KEYS[1], 'C')
return 1
