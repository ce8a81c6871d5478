#!lua
-- SPDX-License-Identifier: MIT OR Apache-2.0
-- Grants a lease, or reports why not, in one step (ACQ-1, ACQ-2, ACQ-9).
-- KEYS: the record. ARGV: one argument, because each costs time: the length of the next part as a byte;
-- lease plus grace in ms; owner; the part of a new record after its token.
-- Returns one of: G and the token (granted); T and the token (taken over, also when the new owner
-- acquires again, ACQ-12); B, the token and the remaining ms (busy); the whole record (complete);
-- X (the value is not one that this store writes).
local call, sub = redis.call, string.sub
local old = call('GET', KEYS[1])
local answer, mark, last = 'G', 'rp1P', nil
if old then
  local state = sub(old, 1, 4)
  -- The most frequent case costs one command.
  if state == 'rp1C' then
    return old
  end
  last = sub(old, 21, 36)
  local grace = tonumber(sub(old, 37, 49))
  if #old < 51 or not grace or not tonumber(last) or (state ~= 'rp1P' and state ~= 'rp1T' and state ~= 'rp1R') then
    return 'X'
  end
  if state ~= 'rp1R' then
    local arg = ARGV[1]
    local at = string.byte(arg) + 2
    if sub(old, 5, 20) == sub(arg, at, at + 15) then
      call('SET', KEYS[1], sub(old, 1, 36) .. sub(arg, at + 16), 'PX', sub(arg, 2, at - 1))
      if state == 'rp1T' then
        answer = 'T'
      end
      return answer .. last
    end
    local remaining = call('PTTL', KEYS[1]) - grace
    if remaining > 0 then
      return 'B' .. last .. string.format('%.0f', remaining)
    end
    answer, mark = 'T', 'rp1T'
  end
end
-- ACQ-10: the token is drawn while no other script runs; microseconds have 16 digits until 2286.
local now = call('TIME')
local token = now[1] .. sub('00000' .. now[2], -6)
-- Digits of equal length compare as numbers do. Lua's numbers are exact up to the year 2255.
if last and token <= last then
  token = string.format('%016.0f', last + 1)
end
local arg = ARGV[1]
local at = string.byte(arg) + 2
local record = mark .. sub(arg, at, at + 15) .. token .. sub(arg, at + 16)
call('SET', KEYS[1], record, 'PX', sub(arg, 2, at - 1))
return answer .. token
