#!lua flags=allow-oom
-- SPDX-License-Identifier: MIT OR Apache-2.0
-- Releases the lease if the caller is the recorded owner (RUN-4). The released record keeps the last
-- token for a while (ACQ-10), has no note (REC-2), and counts as absent.
-- KEYS: the record, whose key is also the channel. ARGV: owner, owner of a released record, its ttl
-- in ms, the part of it after the token.
-- Returns 1 applied, 2 nothing to release, 0 not the owner, 3 not a value that this store writes.
local head = redis.call('GETRANGE', KEYS[1], '0', '54')
if head == '' then
  return 2
end
local state = string.sub(head, 1, 4)
if #head < 55 or (state ~= 'rp2P' and state ~= 'rp2C' and state ~= 'rp2R' and state ~= 'rp2K') then
  return 3
end
if state == 'rp2R' or state == 'rp2K' then
  return 2
end
if state == 'rp2C' or string.sub(head, 5, 20) ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], 'rp2R' .. ARGV[2] .. string.sub(head, 21, 36) .. ARGV[4], 'PX', ARGV[3])
redis.pcall('SPUBLISH', KEYS[1], 'R')
return 1
