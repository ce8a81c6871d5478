#!lua
-- SPDX-License-Identifier: MIT OR Apache-2.0
-- Grants a lease, or says why not, in one step (ACQ-1, ACQ-2, ACQ-9).
-- KEYS: the record. ARGV: owner, lease and grace together in ms, what stands behind the token of a new record.
-- Answers G and the token: granted; T and the token: taken over; B, the token and the ms that are left: busy; X: not ours to read;
-- the whole record when complete.
local call, sub = redis.call, string.sub
-- ACQ-10: drawn here, under the script's lock; microseconds have 16 digits until the year 2286.
local now = call('TIME')
local token = now[1] .. string.format('%06d', now[2])
local old = call('SET', KEYS[1], 'rp1P' .. ARGV[1] .. token .. ARGV[3], 'NX', 'GET', 'PX', ARGV[2])
if not old then
  return 'G' .. token
end
local state = sub(old, 1, 4)
if state == 'rp1C' then
  return old
end
local last, grace = sub(old, 21, 36), tonumber(sub(old, 37, 49))
if #old < 51 or not grace or not tonumber(last) then
  return 'X'
end
local said = 'G'
if state == 'rp1P' then
  if sub(old, 5, 20) == ARGV[1] then
    call('SET', KEYS[1], sub(old, 1, 36) .. ARGV[3], 'PX', ARGV[2])
    return 'G' .. last
  end
  local remaining = call('PTTL', KEYS[1]) - grace
  if remaining > 0 then
    return 'B' .. last .. string.format('%.0f', remaining)
  end
  said = 'T'
elseif state ~= 'rp1R' then
  return 'X'
end
-- Digits of one length compare as numbers do. Lua's numbers are exact up to the year 2255.
if token <= last then
  token = string.format('%016.0f', last + 1)
end
call('SET', KEYS[1], 'rp1P' .. ARGV[1] .. token .. ARGV[3], 'PX', ARGV[2])
return said .. token
