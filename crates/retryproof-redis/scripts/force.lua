#!lua flags=allow-oom
-- SPDX-License-Identifier: MIT OR Apache-2.0
-- Changes a record for an operator if it has the token that the operator saw (OPS-3, OPS-4). An
-- operator calls this script rarely, so it reads the whole record.
-- KEYS: the record, whose key is also the channel. ARGV: release, resolve, forget or erase; token,
-- 16 digits; 1 if a release or a resolve may end a live lease; then
--   release, forget: owner of a released record; its ttl in ms; the part of it after the token;
--   resolve: owner, zero grace and length of the fingerprint; ttl in ms; fingerprint and value;
--   erase: the value;
-- and W if WAIT follows. A repeated resolve then writes the record again, as a completion does.
-- Returns one of: A (applied); L, 19 digits of remaining ms, and the whole record (live lease);
-- U (unfinished); F (finished); T and the token (another token); N (absent); X (the value is not one
-- that this store writes).
local call, sub = redis.call, string.sub
local old = call('GET', KEYS[1])
if not old then
  return 'N'
end
local state = sub(old, 1, 4)
if #old < 55 or (state ~= 'rp2P' and state ~= 'rp2C' and state ~= 'rp2R' and state ~= 'rp2K') then
  return 'X'
end
if state == 'rp2R' or state == 'rp2K' then
  return 'N'
end
local token, grace = sub(old, 21, 36), tonumber(sub(old, 41, 53))
local fingerprint = tonumber(sub(old, 54, 55))
local high, low = string.byte(old, 39, 40)
local note = 55 + high * 256 + low
if not string.find(token, '^%d+$') or not grace or not fingerprint or fingerprint > 64
  or #old < note + fingerprint then
  return 'X'
end
if token ~= ARGV[2] then
  return 'T' .. token
end
local action = ARGV[1]
local ends_lease = action == 'release' or action == 'resolve'
if state == 'rp2P' then
  local remaining = call('PTTL', KEYS[1]) - grace
  if remaining > 0 and not (ends_lease and ARGV[3] == '1') then
    return 'L' .. string.format('%019.0f', remaining) .. old
  end
  if not ends_lease then
    return 'U'
  end
elseif ends_lease then
  -- The answer to the first attempt may have been lost.
  if action == 'resolve' and sub(old, 5, 20) == sub(ARGV[4], 1, 16) then
    if ARGV[7] then
      call('SET', KEYS[1], old, 'KEEPTTL')
    end
    return 'A'
  end
  return 'F'
end
if action == 'erase' then
  call('SET', KEYS[1], sub(old, 1, note + fingerprint) .. ARGV[4], 'KEEPTTL')
  return 'A'
end
if action == 'resolve' then
  local length, kept = sub(ARGV[4], 30, 31), ''
  -- Without a fingerprint, the record keeps the grant's.
  if length == '00' then
    length, kept = sub(old, 54, 55), sub(old, note + 1, note + fingerprint)
  end
  local head = sub(ARGV[4], 1, 16) .. sub(old, 21, 38) .. '\0\0' .. sub(ARGV[4], 17, 29) .. length
  call('SET', KEYS[1], 'rp2C' .. head .. kept .. ARGV[6], 'PX', ARGV[5])
  redis.pcall('SPUBLISH', KEYS[1], 'C')
  return 'A'
end
-- A released and a forgotten key keep the last token for a while (ACQ-10).
call('SET', KEYS[1], 'rp2R' .. ARGV[4] .. token .. ARGV[6], 'PX', ARGV[5])
redis.pcall('SPUBLISH', KEYS[1], 'R')
return 'A'
