#!lua
-- SPDX-License-Identifier: MIT OR Apache-2.0
-- Grants a lease, or reports why not, in one step (ACQ-1, ACQ-2, ACQ-9).
-- KEYS: the record. ARGV: a single argument, because each argument costs time. Its parts: the length
-- of the next part, as a byte; lease plus grace in ms; owner; the part of a new record after its
-- takeovers.
-- Returns one of: G and the token (granted); T and the token (taken over, even when the new owner
-- acquires again, ACQ-12); B, 19 digits of remaining ms, and the whole record (busy); the whole
-- record (complete); X (the value is not one that this store writes).
local call, sub = redis.call, string.sub
local old = call('GET', KEYS[1])
local state = old and sub(old, 1, 4)
-- The most frequent case costs one command.
if state == 'rp2C' then
  return old
end
local arg = ARGV[1]
local at = string.byte(arg) + 2
local owner = sub(arg, at, at + 15)
local answer, takeovers, last = 'G', '\0\0', nil
if old then
  local grace, again = sub(old, 41, 53), false
  if state == 'rp2P' then
    again = sub(old, 5, 20) == owner
    local remaining = not again and tonumber(grace) and call('PTTL', KEYS[1]) - grace
    -- The client checks the rest of this record.
    if remaining and remaining > 0 then
      return 'B' .. string.format('%019.0f', remaining) .. old
    end
  end
  -- CMP-8: a record is replaced only if all of its header can be read.
  last = sub(old, 21, 36)
  local fingerprint = sub(old, 54, 55)
  if #old < 55 or (state ~= 'rp2P' and state ~= 'rp2R' and state ~= 'rp2K')
    or not string.find(last .. grace .. fingerprint, '^%d+$') or tonumber(fingerprint) > 64 then
    return 'X'
  end
  local high, low, note_high, note_low = string.byte(old, 37, 40)
  if high > 127 or #old < 55 + note_high * 256 + note_low + fingerprint then
    return 'X'
  end
  if again then
    call('SET', KEYS[1], sub(old, 1, 38) .. sub(arg, at + 16), 'PX', sub(arg, 2, at - 1))
    return (high + low > 0 and 'T' or 'G') .. last
  end
  if state == 'rp2P' then
    local count = math.min(high * 256 + low + 1, 32767)
    answer, takeovers = 'T', string.char(math.floor(count / 256), count % 256)
  end
end
-- ACQ-10: the token is drawn while no other script runs; microseconds have 16 digits until 2286.
local now = call('TIME')
local token = now[1] .. sub('00000' .. now[2], -6)
-- Digits of equal length compare as numbers do. Lua's numbers are exact up to the year 2255.
if last and token <= last then
  token = string.format('%016.0f', last + 1)
end
local record = 'rp2P' .. owner .. token .. takeovers .. sub(arg, at + 16)
call('SET', KEYS[1], record, 'PX', sub(arg, 2, at - 1))
return answer .. token
