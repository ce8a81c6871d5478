#!lua
-- SPDX-License-Identifier: MIT OR Apache-2.0
-- Grants a lease, or says why not, in one step (ACQ-1, ACQ-2, ACQ-9).
-- KEYS: the record. ARGV: one text, for each argument costs: the length of the next as a byte; lease and grace together in ms; owner;
-- what stands behind the token of a new record.
-- Answers G and the token: granted; T and the token: taken over, also to the owner that asks again (ACQ-12); B, the token and the ms that are left: busy; X: not ours to read;
-- the whole record when complete.
local call, sub = redis.call, string.sub
local old = call('GET', KEYS[1])
local said, mark, last = 'G', 'rp1P', nil
if old then
  local state = sub(old, 1, 4)
  -- What is asked most: one command, and nothing else is looked at or drawn.
  if state == 'rp1C' then
    return old
  end
  last = sub(old, 21, 36)
  local grace = tonumber(sub(old, 37, 49))
  if #old < 51 or not grace or not tonumber(last) or (state ~= 'rp1P' and state ~= 'rp1T' and state ~= 'rp1R') then
    return 'X'
  end
  if state ~= 'rp1R' then
    local asked = ARGV[1]
    local at = string.byte(asked) + 2
    if sub(old, 5, 20) == sub(asked, at, at + 15) then
      call('SET', KEYS[1], sub(old, 1, 36) .. sub(asked, at + 16), 'PX', sub(asked, 2, at - 1))
      if state == 'rp1T' then
        said = 'T'
      end
      return said .. last
    end
    local remaining = call('PTTL', KEYS[1]) - grace
    if remaining > 0 then
      return 'B' .. last .. string.format('%.0f', remaining)
    end
    said, mark = 'T', 'rp1T'
  end
end
-- ACQ-10: drawn here, under the script's lock; microseconds have 16 digits until the year 2286.
local now = call('TIME')
local token = now[1] .. sub('00000' .. now[2], -6)
-- Digits of one length compare as numbers do. Lua's numbers are exact up to the year 2255.
if last and token <= last then
  token = string.format('%016.0f', last + 1)
end
local asked = ARGV[1]
local at = string.byte(asked) + 2
local record = mark .. sub(asked, at, at + 15) .. token .. sub(asked, at + 16)
call('SET', KEYS[1], record, 'PX', sub(asked, 2, at - 1))
return said .. token
