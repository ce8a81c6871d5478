#!lua
-- SPDX-License-Identifier: MIT OR Apache-2.0
-- Grants a lease, or says why not, in one step (ACQ-1, ACQ-2, ACQ-9).
-- KEYS: the record. ARGV: owner, lease in ms, grace in ms (13 digits), length of the fingerprint (2 digits) and the fingerprint.
-- Answers {0, token, took over} granted; {1, token, remaining ms} busy; {2} not ours to read; the whole value when complete.
local head = redis.call('GETRANGE', KEYS[1], 0, 50)
local token, took
if head == '' then
  token, took = 0, 0
else
  local state = string.sub(head, 1, 4)
  if state == 'rp1C' then
    return redis.call('GET', KEYS[1])
  end
  local last, grace = tonumber(string.sub(head, 21, 36)), tonumber(string.sub(head, 37, 49))
  if #head < 51 or not last or not grace then
    return {2}
  end
  token, took = last + 1, 0
  if state == 'rp1P' then
    if string.sub(head, 5, 20) == ARGV[1] then
      token = last
    else
      local remaining = redis.call('PTTL', KEYS[1]) - grace
      if remaining > 0 then
        return {1, last, remaining}
      end
      took = 1
    end
  elseif state ~= 'rp1R' then
    return {2}
  end
  if token == last then
    redis.call('SET', KEYS[1], 'rp1P' .. string.sub(head, 5, 36) .. ARGV[3] .. ARGV[4], 'PX', ARGV[2] + ARGV[3])
    return {0, token, 0}
  end
end
-- ACQ-10: drawn here, under the script's lock. Microseconds stay exact in Lua's numbers until the year 2255.
local now = redis.call('TIME')
token = math.max(now[1] * 1000000 + now[2], token)
redis.call('SET', KEYS[1], 'rp1P' .. ARGV[1] .. string.format('%016.0f', token) .. ARGV[3] .. ARGV[4], 'PX', ARGV[2] + ARGV[3])
return {0, token, took}
