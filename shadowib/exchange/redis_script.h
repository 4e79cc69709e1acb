// The script that runs on the Redis server: EVALSHA <script> 0 <prefix> <word of P:x> <operation> <arguments...>.
#pragma once

namespace shadowib {

// An answer of "GONE" as an error: P:x is not what it was. The server makes each function anew whenever the script
// runs: what thousands of members ask most often stands before those that it does not need.
inline constexpr char kRedisScript[] = R"lua(
local P, call, operation = ARGV[1] .. ':', redis.call, ARGV[3]
if call('GET', P .. 'x') ~= ARGV[2] then return redis.error_reply('GONE') end

local function split(key)
  local above, name = string.match(key, '^(.*)/([^/]*)$')
  if above then return above, name end
  return '', key
end
local function link(directory)
  while directory ~= '' do
    local above, name = split(directory)
    if call('SADD', P .. 's:' .. above, name) == 0 then return end
    directory = above
  end
end
local function latest(stream)
  local entry = call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
  return entry and entry[1] or '0-0'
end

local function enter(barrier, member, wanted)
  local set, waited, opened = P .. 'b:' .. barrier, P .. 'w:' .. barrier, P .. 'o:' .. barrier
  local added = call('SADD', set, member)
  local count = call('SCARD', set)
  if count == 1 and added == 1 then
    local directory, name = split(barrier)
    if call('SADD', P .. 'e:' .. directory, name) == 1 then link(directory) end
  end
  call('SADD', waited, wanted)
  local tells = added == 1 and call('SISMEMBER', waited, count) == 1
  -- Who has asked to wait, too, and finds all there, is not to sleep.
  if tells or (count >= tonumber(wanted) and latest(opened) == '0-0') then
    call('XADD', opened, 'MAXLEN', 1, '*', 'n', count)
  end
  return count
end
-- How many have entered.
if operation == 'come' then return enter(ARGV[4], ARGV[5], ARGV[6]) end
-- The same, whether the abort key is there, and from where the two streams are to be waited for.
if operation == 'enter' then
  local count, opened = enter(ARGV[4], ARGV[5], ARGV[6]), P .. 'o:' .. ARGV[4]
  if ARGV[7] == '' then return {count, 0, latest(opened), '0-0'} end
  local directory, name = split(ARGV[7])
  return {count, call('HEXISTS', P .. 'h:' .. directory, name), latest(opened), latest(P .. 'v:' .. directory)}
end

-- Whole blocks of entries go at a time. With one entry each change would look at all of a block that have gone.
local function changed(directory) call('XADD', P .. 'v:' .. directory, 'MAXLEN', '~', 1, '*', 'k', '') end
if operation == 'publish' or operation == 'claim' then
  local directory, name = split(ARGV[4])
  local added = call(operation == 'claim' and 'HSETNX' or 'HSET', P .. 'h:' .. directory, name, ARGV[5])
  if added == 1 then link(directory) end
  if added == 1 or operation == 'publish' then changed(directory) end
  return operation == 'publish' and 1 or added
end
if operation == 'remove' then
  local directory, name = split(ARGV[4])
  if call('HDEL', P .. 'h:' .. directory, name) == 1 then changed(directory) end
  return 1
end

local function join(directory, name)
  if directory == '' then return name end
  return directory .. '/' .. name
end
local function holds(directory)
  if call('EXISTS', P .. 'h:' .. directory) == 1 then return true end
  for _, name in ipairs(call('SMEMBERS', P .. 's:' .. directory)) do
    if holds(join(directory, name)) then return true end
  end
  return false
end
if operation == 'list' then
  local names = call('HKEYS', P .. 'h:' .. ARGV[4])
  for _, name in ipairs(call('SMEMBERS', P .. 's:' .. ARGV[4])) do
    if holds(join(ARGV[4], name)) then names[#names + 1] = name end
  end
  return names
end

local function drop(directory)
  for _, name in ipairs(call('SMEMBERS', P .. 's:' .. directory)) do drop(join(directory, name)) end
  for _, name in ipairs(call('SMEMBERS', P .. 'e:' .. directory)) do
    local barrier = join(directory, name)
    call('UNLINK', P .. 'b:' .. barrier, P .. 'w:' .. barrier, P .. 'o:' .. barrier)
  end
  call('UNLINK', P .. 'h:' .. directory, P .. 's:' .. directory, P .. 'v:' .. directory, P .. 'e:' .. directory)
end
if operation == 'drop' then
  drop(ARGV[4])
  local above, name = split(ARGV[4])
  call('SREM', P .. 's:' .. above, name)
  return 1
end
)lua";

}  // namespace shadowib
