-- The Godwit protocol, version 1, for Wireshark and tshark: packets, frames, records, batches, control messages, work.
-- docs/PROTOCOL.md of Godwit specifies the bytes. `godwit dissector install` copies this file to Wireshark's plugins.
--
-- Packets are recognised on the ports of the preference, and on any port by their checksum. Fragments are joined to
-- records per connection and channel; requests are linked with their replies, and fragments with earlier copies.
-- Sealed packets have no checksum: they are recognised after the handshake of their connection. They show their header,
-- and with a key log (the preference key_log) their frames.
--
-- A recording on the machine of the sender or the receiver may have trains: packets of a connection in one datagram,
-- which its network card would cut or has joined (GSO, GRO). They are shown one by one.

local godwit = Proto("godwit", "Godwit")

local MAX_RECORD_BYTES = 32 * 1024 * 1024 -- longer records are not joined
local MAX_HELD_BYTES = 256 * 1024 * 1024 -- of all unfinished records together
local MAX_DEPTH = 16 -- of CBOR
local SMALLEST_PACKET = 18
local HEADER_BYTES = 13
local TAG_BYTES = 16 -- at the end of a sealed packet, in place of the checksum
local INTACT = 0x48674BC7
local MAX_TRAIN = 1024 -- packets in one datagram
local MAX_CANDIDATES = 8 -- places where the second packet of a train may begin: payloads may have connection ids, too

-- Lua 5.2 has no operators for bits, and 5.4 no library: Wireshark's own is there in most versions.
local bits = bit or bit32
local band, bor, bxor, lshift, rshift
if bits then
  band, bor, bxor, lshift, rshift = bits.band, bits.bor, bits.bxor, bits.lshift, bits.rshift
else
  bor = load("return function(a, b) return a | b end")()
  lshift = load("return function(a, n) return (a << n) & 0xFFFFFFFF end")()
  band = load("return function(a, b) return a & b end")()
  bxor = load("return function(a, b) return a ~ b end")()
  rshift = load("return function(a, n) return (a & 0xFFFFFFFF) >> n end")()
end

-- fields --------------------------------------------------------------------------------------------------------------

local FRAMES = {
  [0x00] = "PADDING", [0x01] = "PING", [0x02] = "HELLO", [0x03] = "COOKIE", [0x04] = "CONNECT", [0x05] = "ACCEPT",
  [0x06] = "REFUSE", [0x07] = "ACK", [0x08] = "ACK_POSITION", [0x09] = "CONFIRM", [0x0a] = "CREDIT",
  [0x0b] = "BLOCKED", [0x0c] = "PATH_PROBE", [0x0d] = "PATH_RESPONSE", [0x0e] = "CLOSE", [0x0f] = "RESET",
  [0x10] = "CRYPTO", [0x11] = "TOKEN",
}
for kind = 0x40, 0x7f do FRAMES[kind] = "DATA" end

local CODES = {
  [0] = "NORMAL", [1] = "SHUTDOWN", [2] = "PROTOCOL", [3] = "LIMIT", [4] = "VERSION", [5] = "BUSY", [6] = "TIMEOUT",
  [7] = "RESET", [8] = "INTERNAL", [9] = "SEALING", [10] = "STANDBY",
  [100] = "UNKNOWN_KIND", [101] = "MALFORMED", [102] = "NOT_ALLOWED",
  [103] = "NO_SUCH_TOPIC", [104] = "BAD_TOPIC", [105] = "BAD_FILTER", [106] = "TOO_LARGE", [107] = "NOT_SUBSCRIBED",
  [108] = "BAD_NAME", [109] = "NAME_IN_USE", [110] = "TAKEN_OVER", [111] = "KICKED", [112] = "STALE_EPOCH",
  [113] = "TOPIC_EXISTS", [114] = "NOT_LOGGED_IN", [115] = "TOO_MANY", [116] = "NO_SUCH_CLIENT", [117] = "STORAGE",
  [118] = "NO_SUCH_OFFSET", [119] = "NO_SUCH_JOB", [120] = "BAD_KIND",
}

local RELAY_GAPS = { [0] = "DELETED", [1] = "DAMAGED", [2] = "TOO_LONG", [3] = "REPLACED" }

local fields = {}
local function define(name, make, ...)
  fields[name] = make("godwit." .. name, ...)
  return fields[name]
end

define("version", ProtoField.uint8, "Version", base.DEC, nil, 0xf0)
define("flags", ProtoField.uint8, "Flags", base.HEX, nil, 0x0f)
define("sealed", ProtoField.bool, "Sealed", 8, nil, 0x01)
define("key_phase", ProtoField.bool, "Key phase", 8, nil, 0x02)
define("connection_id", ProtoField.bytes, "Connection id")
define("number", ProtoField.uint32, "Packet number (lower half)", base.DEC)
define("checksum", ProtoField.uint32, "CRC-32C", base.HEX)
define("checksum_status", ProtoField.string, "Status of the checksum")
define("tag", ProtoField.bytes, "Tag")
define("encrypted", ProtoField.bytes, "Encrypted frames")
define("opened", ProtoField.bool, "Decrypted with the key log")
define("length", ProtoField.uint32, "Length", base.DEC)
define("to", ProtoField.string, "Receiver")
define("frame", ProtoField.none, "Frame")
define("frame_type", ProtoField.uint8, "Type", base.HEX, FRAMES)
define("padding", ProtoField.uint32, "Bytes of padding", base.DEC)

define("hello.connection_id", ProtoField.bytes, "Connection id of the client")
define("hello.nonce", ProtoField.bytes, "Nonce of the client")
define("cookie.cookie", ProtoField.bytes, "Cookie")
define("cookie.nonce", ProtoField.bytes, "Nonce of the client")
define("connect.connection_id", ProtoField.bytes, "Connection id of the client")
define("connect.nonce", ProtoField.bytes, "Nonce of the client")
define("connect.cookie", ProtoField.bytes, "Cookie")
define("accept.connection_id", ProtoField.bytes, "Connection id of the server")
define("accept.nonce", ProtoField.bytes, "Nonce of the server")
define("accept.token", ProtoField.bytes, "Reset token")
define("parameters", ProtoField.string, "Parameters")
define("refuse.nonce", ProtoField.bytes, "Nonce of the client")
define("refuse.code", ProtoField.uint16, "Code", base.DEC, CODES)
define("refuse.reason", ProtoField.string, "Reason")
define("ack.delay_us", ProtoField.uint32, "Delay (us)", base.DEC)
define("ack.next_position", ProtoField.uint32, "Next position", base.DEC)
define("ack.count", ProtoField.uint8, "Ranges", base.DEC)
define("ack.first", ProtoField.uint32, "First", base.DEC)
define("ack.last", ProtoField.uint32, "Last", base.DEC)
define("confirm.channel", ProtoField.uint32, "Channel", base.DEC)
define("confirm.sequence", ProtoField.uint64, "Up to record", base.DEC)
define("confirm.reached", ProtoField.uint32, "Reached", base.DEC)
define("credit.channel", ProtoField.uint32, "Channel", base.DEC)
define("credit.limit", ProtoField.uint64, "Limit (bytes)", base.DEC)
define("blocked.channel", ProtoField.uint32, "Channel", base.DEC)
define("blocked.limit", ProtoField.uint64, "Limit (bytes)", base.DEC)
define("path_probe.challenge", ProtoField.bytes, "Challenge")
define("path_response.challenge", ProtoField.bytes, "Challenge")
define("path_response.mac", ProtoField.bytes, "MAC")
define("close.code", ProtoField.uint16, "Code", base.DEC, CODES)
define("close.reason", ProtoField.string, "Reason")
define("close.mac", ProtoField.bytes, "MAC")
define("reset.token", ProtoField.bytes, "Token")
define("crypto.offset", ProtoField.uint32, "Offset", base.DEC)
define("crypto.acknowledged", ProtoField.uint32, "Acknowledged (bytes)", base.DEC)
define("crypto.body", ProtoField.bytes, "Bytes of TLS")
define("token.token", ProtoField.bytes, "Token")

define("data.has_length", ProtoField.bool, "HAS_LENGTH", 8, nil, 0x01)
define("data.whole", ProtoField.bool, "WHOLE", 8, nil, 0x02)
define("data.last", ProtoField.bool, "LAST", 8, nil, 0x04)
define("data.has_position", ProtoField.bool, "HAS_POSITION", 8, nil, 0x08)
define("data.unreliable", ProtoField.bool, "UNRELIABLE", 8, nil, 0x10)
define("data.end", ProtoField.bool, "END", 8, nil, 0x20)
define("data.channel", ProtoField.uint32, "Channel", base.DEC)
define("data.record", ProtoField.uint32, "Record (lower half)", base.DEC)
define("data.offset", ProtoField.uint32, "Offset", base.DEC)
define("data.position", ProtoField.uint32, "Position (lower half)", base.DEC)
define("data.length", ProtoField.uint16, "Length", base.DEC)
define("data.body", ProtoField.bytes, "Body")
define("data.first_sent_in", ProtoField.framenum, "First sent in", base.NONE, frametype.RETRANS_PREV)

define("record", ProtoField.none, "Record")
define("record.bytes", ProtoField.uint32, "Length of the record", base.DEC)
define("control", ProtoField.none, "Control message")
define("control.kind", ProtoField.string, "Kind")
define("control.request", ProtoField.uint32, "Request", base.DEC)
define("control.json", ProtoField.string, "Content")
define("control.field", ProtoField.string, "Field")
define("request_in", ProtoField.framenum, "Request in", base.NONE, frametype.REQUEST)
define("reply_in", ProtoField.framenum, "Reply in", base.NONE, frametype.RESPONSE)
define("batch", ProtoField.none, "Batch")
define("batch.lone", ProtoField.bool, "LONE", 8, nil, 0x01)
define("batch.deltas", ProtoField.bool, "DELTAS", 8, nil, 0x02)
define("batch.retain", ProtoField.bool, "RETAIN", 8, nil, 0x04)
define("batch.has_sequence", ProtoField.bool, "SEQUENCE", 8, nil, 0x08)
define("batch.has_route", ProtoField.bool, "ROUTE", 8, nil, 0x10)
define("batch.has_extension", ProtoField.bool, "EXTENSION", 8, nil, 0x20)
define("batch.qos", ProtoField.uint8, "QoS", base.DEC, nil, 0xc0)
define("batch.published_us", ProtoField.uint64, "Published (us since 1970)", base.DEC)
define("batch.sequence", ProtoField.uint64, "Sequence", base.DEC)
define("batch.topic_label", ProtoField.uint32, "Topic label", base.DEC)
define("batch.publisher_label", ProtoField.uint32, "Publisher label", base.DEC)
define("batch.topic", ProtoField.string, "Topic")
define("batch.publisher", ProtoField.string, "Publisher")
define("batch.offset", ProtoField.uint64, "Offset in the log", base.DEC)
define("batch.received_us", ProtoField.uint64, "Received (us since 1970)", base.DEC)
define("batch.extension", ProtoField.bytes, "Extension")
define("batch.extension_json", ProtoField.string, "Content of the extension")
define("batch.count", ProtoField.uint32, "Count", base.DEC)
define("batch.message_length", ProtoField.uint32, "Length", base.DEC)
define("batch.delta_us", ProtoField.uint32, "Delta (us)", base.DEC)
define("batch.payload", ProtoField.bytes, "Payload")
define("batch.empty_payload", ProtoField.none, "Empty payload")
define("work", ProtoField.none, "Work group")
define("work.kind", ProtoField.string, "Kind")
define("work.json", ProtoField.string, "Head")
define("work.field", ProtoField.string, "Field")
define("work.payloads", ProtoField.bytes, "Payloads")
define("relay", ProtoField.none, "Range of a log")
define("relay.rewind", ProtoField.bool, "REWIND", 8, nil, 0x01)
define("relay.begin", ProtoField.uint64, "Begin", base.DEC)
define("relay.end", ProtoField.uint64, "End", base.DEC)
define("relay.gap", ProtoField.none, "Gap")
define("relay.gap.reason", ProtoField.uint8, "Reason", base.DEC, RELAY_GAPS)
define("relay.gap.first", ProtoField.uint64, "First", base.DEC)
define("relay.gap.end", ProtoField.uint64, "End", base.DEC)
define("relay.gap.count", ProtoField.uint64, "Messages, at most", base.DEC)
define("relay.name", ProtoField.string, "Name")
define("relay.entry", ProtoField.none, "Entry")
define("relay.offset", ProtoField.uint64, "Offset", base.DEC)
define("relay.topic", ProtoField.uint16, "Place of the topic", base.DEC)
define("relay.publisher", ProtoField.uint16, "Place of the publisher", base.DEC)
define("relay.count", ProtoField.uint32, "Messages", base.DEC)
define("relay.length", ProtoField.uint32, "Length", base.DEC)

do
  local list = {}
  for _, field in pairs(fields) do list[#list + 1] = field end
  godwit.fields = list
end

local experts = {
  checksum = ProtoExpert.new("godwit.expert.checksum", "Bad checksum", expert.group.CHECKSUM, expert.severity.ERROR),
  malformed = ProtoExpert.new("godwit.expert.malformed", "Malformed", expert.group.MALFORMED, expert.severity.ERROR),
  version = ProtoExpert.new("godwit.expert.version", "Unknown version or flags", expert.group.PROTOCOL,
    expert.severity.WARN),
  retransmit = ProtoExpert.new("godwit.expert.retransmit", "Fragment sent again", expert.group.SEQUENCE,
    expert.severity.NOTE),
  repeated = ProtoExpert.new("godwit.expert.repeated", "Packet number seen before", expert.group.SEQUENCE,
    expert.severity.WARN),
  missing = ProtoExpert.new("godwit.expert.missing", "Packets before this one are missing", expert.group.SEQUENCE,
    expert.severity.NOTE),
  late = ProtoExpert.new("godwit.expert.late", "Packet out of order", expert.group.SEQUENCE, expert.severity.NOTE),
  gap = ProtoExpert.new("godwit.expert.gap", "Messages are missing", expert.group.SEQUENCE, expert.severity.WARN),
  refused = ProtoExpert.new("godwit.expert.refused", "A request was refused", expert.group.RESPONSE_CODE,
    expert.severity.NOTE),
}
do
  local list = {}
  for _, one in pairs(experts) do list[#list + 1] = one end
  godwit.experts = list
end

godwit.prefs.key_log = Pref.string("Key log", "", "File that GODWIT_KEY_LOG named, with the secrets of sealed connections")
godwit.prefs.ports = Pref.range("UDP ports", "50000", "Ports of brokers", 65535)

-- state of a capture --------------------------------------------------------------------------------------------------

local directions -- by connection id of the receiver, as text
local pairs_by_address -- two directions by the addresses of both sides
local facts -- what the first pass has found, by frame number and place in the train
local place_in_train = 0
local held_bytes
local secrets -- of the key log; nil before it is read

local function forget()
  directions, pairs_by_address, facts, held_bytes, secrets = {}, {}, {}, 0, nil
end
forget()
godwit.init = forget

local function new_direction(id)
  return {
    id = id, role = nil, other = nil, largest = nil, numbers = {}, fragments = {}, records = {}, channels = {},
    requests = {}, topics = {}, publishers = {}, keys = {}, generation = 0, newest = nil, session = nil,
  }
end

-- The direction of packets to this connection id. Its counterpart is known from the handshake, or by the addresses.
local function direction_of(id, pinfo)
  local found = directions[id]
  if not found then
    found = new_direction(id)
    directions[id] = found
  end
  if not found.other then
    local from = tostring(pinfo.src) .. " " .. pinfo.src_port
    local to = tostring(pinfo.dst) .. " " .. pinfo.dst_port
    local back = pairs_by_address[to .. " " .. from]
    if back and back ~= found and not back.other then
      found.other, back.other = back, found
    end
    pairs_by_address[from .. " " .. to] = found
  end
  return found
end

local function link(client_id, server_id)
  local to_client = directions[client_id] or new_direction(client_id)
  local to_server = directions[server_id] or new_direction(server_id)
  directions[client_id], directions[server_id] = to_client, to_server
  to_client.role, to_server.role = "client", "server"
  to_client.other, to_server.other = to_server, to_client
  to_client.session = to_client.session or {} -- what both directions of a sealed connection share
  to_server.session = to_client.session
  return to_client.session
end

-- checksum ------------------------------------------------------------------------------------------------------------

local crc_table = {}
for index = 0, 255 do
  local value = index
  for _ = 1, 8 do
    if band(value, 1) == 1 then value = bxor(rshift(value, 1), 0x82F63B78) else value = rshift(value, 1) end
  end
  crc_table[index] = value
end

local function crc32c(data)
  local value = 0xFFFFFFFF
  for at = 1, #data do
    value = bxor(rshift(value, 8), crc_table[band(bxor(value, data:byte(at)), 0xFF)])
  end
  value = bxor(value, 0xFFFFFFFF)
  if value < 0 then value = value + 4294967296 end -- the numbers of some libraries are signed
  return value
end

-- CBOR as JSON --------------------------------------------------------------------------------------------------------

local function quoted(text)
  return '"' .. text:gsub('[%c"\\\127]', function(letter)
    return string.format("\\u%04x", letter:byte())
  end) .. '"'
end

local function hex(text)
  return (text:gsub(".", function(letter) return string.format("%02x", letter:byte()) end))
end

local function half(value)
  local sign = value >= 0x8000 and -1 or 1
  local exponent, fraction = math.floor(value / 1024) % 32, value % 1024
  if exponent == 0 then return sign * fraction * 2 ^ -24 end
  if exponent == 31 then return fraction == 0 and sign * math.huge or 0 / 0 end
  return sign * (1 + fraction / 1024) * 2 ^ (exponent - 15)
end

local function float_text(value)
  if value ~= value then return '"NaN"' end
  if value == math.huge then return '"Infinity"' end
  if value == -math.huge then return '"-Infinity"' end
  local text = string.format("%.17g", value):gsub(",", ".") -- some locales have a decimal comma
  return text:find("[.e]") and text or text .. ".0"
end

-- Returns the value as {json =, text =, list =, map =} and the position after it, or nil and the reason.
local cbor_value

local function cbor_items(tvb, at, count, depth, is_map)
  local items, keys, parts = {}, {}, {}
  for index = 1, count do
    local key
    if is_map then
      key, at = cbor_value(tvb, at, depth + 1)
      if not key then return nil, at end
    end
    local value
    value, at = cbor_value(tvb, at, depth + 1)
    if not value then return nil, at end
    if is_map then
      items[key.text or key.json], keys[index] = value, key.text or key.json
      parts[index] = (key.text and key.json or quoted(key.json)) .. ": " .. value.json
    else
      items[index], parts[index] = value, value.json
    end
  end
  local json = table.concat(parts, ", ")
  if is_map then return { json = "{" .. json .. "}", map = items, keys = keys }, at end
  return { json = "[" .. json .. "]", list = items }, at
end

function cbor_value(tvb, at, depth)
  if depth > MAX_DEPTH then return nil, "CBOR is nested too deeply" end
  if at >= tvb:len() then return nil, "CBOR is cut short" end
  local begin = at
  local first = tvb(at, 1):uint()
  local major, extra = math.floor(first / 32), first % 32
  at = at + 1
  local size = ({ [24] = 1, [25] = 2, [26] = 4, [27] = 8 })[extra] or 0
  if extra > 27 then return nil, "CBOR of indefinite length" end
  if at + size > tvb:len() then return nil, "CBOR is cut short" end
  local number, digits = extra, tostring(extra)
  if size > 0 and size < 8 then
    number = tvb(at, size):uint()
    digits = string.format("%.0f", number)
  elseif size == 8 then
    local wide = tvb(at, 8):uint64()
    digits, number = tostring(wide), wide:tonumber()
  end
  local argument_at = at
  at = at + size
  if major == 0 then
    return { json = digits, number = number, begin = begin }, at
  elseif major == 1 then
    if size == 8 then
      digits = tostring(tvb(argument_at, 8):uint64() + 1)
    else
      digits = string.format("%.0f", number + 1)
    end
    return { json = "-" .. digits, begin = begin }, at
  elseif major == 2 or major == 3 then
    if number > tvb:len() - at then return nil, "CBOR is cut short" end
    local text = number > 0 and tvb(at, number):raw() or ""
    if major == 2 then return { json = '"' .. hex(text) .. '"', begin = begin }, at + number end
    return { json = quoted(text), text = text, begin = begin }, at + number
  elseif major == 4 or major == 5 then
    if number > tvb:len() - at then return nil, "CBOR claims more values than there are bytes" end
    return cbor_items(tvb, at, number, depth, major == 5)
  elseif major == 7 then
    if size == 0 then
      local names = { [20] = "false", [21] = "true", [22] = "null" }
      if names[extra] then return { json = names[extra], begin = begin }, at end
    elseif size == 2 then
      return { json = float_text(half(number)), begin = begin }, at
    elseif size == 4 or size == 8 then
      return { json = float_text(tvb(argument_at, size):float()), begin = begin }, at
    end
  end
  return nil, "CBOR of a type that the protocol does not use"
end

-- A map: its value, or nil after it was reported as malformed.
local function cbor_map(tvb, tree)
  local value, after = cbor_value(tvb, 0, 0)
  if not value then
    tree:add_proto_expert_info(experts.malformed, after)
  elseif not value.map then
    tree:add_proto_expert_info(experts.malformed, "not a map")
    value = nil
  elseif after ~= tvb:len() then
    tree:add_proto_expert_info(experts.malformed, "bytes after the map")
  end
  return value
end

-- records -------------------------------------------------------------------------------------------------------------

local REPLIES = {
  done = true, error = true, pong = true, subscribed = true, progressed = true, topic_list = true, client_list = true,
  cursor_list = true, group_list = true, volunteered = true, watched = true, retried = true, job_list = true,
  job_shown = true, worker_list = true, bridge_list = true,
}
local OPENINGS = { opened = true, refused = true, relaying = true }

local function note_labels(direction, map)
  for _, name in ipairs({ "topics", "publishers" }) do
    local pairs_of_labels = map[name]
    if pairs_of_labels and pairs_of_labels.list then
      for _, pair in ipairs(pairs_of_labels.list) do
        local label, text = pair.list and pair.list[1], pair.list and pair.list[2]
        if label and text and text.text then direction[name][label.json] = text.text end
      end
    end
  end
end

-- The key under which a request and its reply are the same.
local function exchange_of(kind, map, channel)
  if kind == "login" or kind == "welcome" then return "login" end
  if kind == "open" or kind == "relay" then return "open " .. channel end
  if OPENINGS[kind] and map.channel then return "open " .. map.channel.json end
  if map.request then return "request " .. map.request.json end
  return nil
end

local function link_request(direction, kind, map, channel, found, number)
  local exchange = exchange_of(kind, map, channel)
  if not exchange or not direction.other then return end
  if REPLIES[kind] or OPENINGS[kind] or kind == "welcome" then
    local request = direction.other.requests[exchange]
    if request then
      found.request_in = request.number
      request.found.reply_in = number
      direction.other.requests[exchange] = nil
    end
  else
    direction.requests[exchange] = { number = number, found = found }
  end
end

local function show_control(tvb, tree, context, channel)
  local item = tree:add(fields["control"], tvb())
  local value = cbor_map(tvb, item)
  if not value then return nil end
  local kind = value.map.kind and value.map.kind.text or "?"
  item:set_text("Control message: " .. kind)
  item:add(fields["control.kind"], tvb(), kind)
  if value.map.request and value.map.request.number then
    item:add(fields["control.request"], tvb(), value.map.request.number)
  end
  item:add(fields["control.json"], tvb(), value.json)
  for _, key in ipairs(value.keys) do
    item:add(fields["control.field"], tvb(), key .. ": " .. value.map[key].json)
  end
  local found = context.found()
  if not context.visited then
    if kind == "labels" then note_labels(context.direction, value.map) end
    link_request(context.direction, kind, value.map, channel, found, context.number)
  end
  if found.request_in then item:add(fields["request_in"], found.request_in):set_generated() end
  if found.reply_in then item:add(fields["reply_in"], found.reply_in):set_generated() end
  if kind == "gap" then item:add_proto_expert_info(experts.gap, value.json) end
  if kind == "error" or kind == "refused" then item:add_proto_expert_info(experts.refused, value.json) end
  context.info(kind)
  return kind
end

local BATCH_FLAGS = { "lone", "deltas", "retain", "has_sequence", "has_route", "has_extension", "qos" }

-- Shows a batch from its extension on. Returns the position after it and the number of messages, or nil.
local function show_batch_rest(tvb, at, item, flags)
  local function need(count)
    if at + count <= tvb:len() then return true end
    item:add_proto_expert_info(experts.malformed, "the batch is cut short")
    return false
  end
  local function show_payload(length)
    if length > 0 then
      item:add(fields["batch.payload"], tvb(at, length))
    else
      item:add(fields["batch.empty_payload"])
    end
    at = at + length
  end
  if band(flags, 0x20) ~= 0 then
    if not need(4) then return nil end
    local length = tvb(at, 4):uint()
    at = at + 4
    if not need(length) then return nil end
    if length > 0 then
      item:add(fields["batch.extension"], tvb(at, length))
      local value, problem = cbor_value(tvb(at, length):tvb(), 0, 0)
      if value then
        item:add(fields["batch.extension_json"], tvb(at, length), value.json)
      else
        item:add_proto_expert_info(experts.malformed, "extension: " .. problem)
      end
    end
    at = at + length
  end
  if band(flags, 0x01) ~= 0 then
    show_payload(tvb:len() - at)
    return at, 1
  end
  if not need(4) then return nil end
  local count = tvb(at, 4):uint()
  item:add(fields["batch.count"], tvb(at, 4))
  at = at + 4
  local has_deltas = band(flags, 0x02) ~= 0
  if count > 65536 or not need(count * (has_deltas and 8 or 4)) then return nil end
  local lengths = {}
  for index = 1, count do
    lengths[index] = tvb(at, 4):uint()
    item:add(fields["batch.message_length"], tvb(at, 4))
    at = at + 4
  end
  for _ = 1, has_deltas and count or 0 do
    item:add(fields["batch.delta_us"], tvb(at, 4))
    at = at + 4
  end
  for _, length in ipairs(lengths) do
    if not need(length) then return nil end
    show_payload(length)
  end
  return at, count
end

local function batch_title(flags, count, topic)
  return string.format("%d message%s, QoS %d%s", count, count == 1 and "" or "s", math.floor(flags / 64),
    topic and (", " .. topic) or "")
end

-- Returns the position after the batch, or nil.
local function show_batch(tvb, at, tree, context)
  local begin = at
  local item = tree:add(fields["batch"], tvb(begin))
  local function need(count)
    if at + count <= tvb:len() then return true end
    item:add_proto_expert_info(experts.malformed, "the batch is cut short")
    return false
  end
  if not need(9) then return nil end
  local flags = tvb(at, 1):uint()
  for _, name in ipairs(BATCH_FLAGS) do item:add(fields["batch." .. name], tvb(at, 1)) end
  item:add(fields["batch.published_us"], tvb(at + 1, 8))
  at = at + 9
  if band(flags, 0x08) ~= 0 then
    if not need(8) then return nil end
    item:add(fields["batch.sequence"], tvb(at, 8))
    at = at + 8
  end
  local topic
  if band(flags, 0x10) ~= 0 then
    if not need(24) then return nil end
    item:add(fields["batch.topic_label"], tvb(at, 4))
    item:add(fields["batch.publisher_label"], tvb(at + 4, 4))
    topic = context.direction.topics[tostring(tvb(at, 4):uint())]
    local publisher = context.direction.publishers[tostring(tvb(at + 4, 4):uint())]
    if topic then item:add(fields["batch.topic"], tvb(at, 4), topic):set_generated() end
    if publisher then item:add(fields["batch.publisher"], tvb(at + 4, 4), publisher):set_generated() end
    item:add(fields["batch.offset"], tvb(at + 8, 8))
    item:add(fields["batch.received_us"], tvb(at + 16, 8))
    at = at + 24
  end
  local after, count = show_batch_rest(tvb, at, item, flags)
  if not after then return nil end
  item:set_len(after - begin)
  item:set_text("Batch: " .. batch_title(flags, count, topic))
  context.info(count == 1 and "message" or count .. " messages")
  return after
end

local RELAY_HEAD, RELAY_GAP, RELAY_ENTRY = 25, 25, 29

-- Returns the positions of the gaps, names and entries of a range of a log, or nil if this is not one.
local function scan_relay(tvb)
  local length = tvb:len()
  if length < RELAY_HEAD or tvb(0, 1):uint() > 1 or tvb(9, 8):uint64() < tvb(1, 8):uint64() then return nil end
  local gaps, names, entries = {}, {}, {}
  local at = RELAY_HEAD
  for index = 1, tvb(17, 2):uint() do
    if at + RELAY_GAP > length then return nil end
    gaps[index], at = at, at + RELAY_GAP
  end
  for index = 1, tvb(19, 2):uint() do
    if at + 2 > length then return nil end
    names[index], at = at, at + 2 + tvb(at, 2):uint()
  end
  for index = 1, tvb(21, 4):uint() do
    if at + RELAY_ENTRY > length then return nil end
    entries[index], at = at, at + RELAY_ENTRY + tvb(at + 25, 4):uint()
  end
  if at ~= length then return nil end
  return { gaps = gaps, names = names, entries = entries }
end

local function show_relay(tvb, tree, context, found)
  local item = tree:add(fields["relay"], tvb())
  if not found then
    item:add_proto_expert_info(experts.malformed, "the range of the log is malformed")
    return
  end
  item:add(fields["relay.rewind"], tvb(0, 1))
  item:add(fields["relay.begin"], tvb(1, 8))
  item:add(fields["relay.end"], tvb(9, 8))
  for _, at in ipairs(found.gaps) do
    local gap = item:add(fields["relay.gap"], tvb(at, RELAY_GAP))
    gap:add(fields["relay.gap.reason"], tvb(at, 1))
    gap:add(fields["relay.gap.first"], tvb(at + 1, 8))
    gap:add(fields["relay.gap.end"], tvb(at + 9, 8))
    gap:add(fields["relay.gap.count"], tvb(at + 17, 8))
    gap:add_proto_expert_info(experts.gap)
  end
  local names = {}
  for index, at in ipairs(found.names) do
    local length = tvb(at, 2):uint()
    names[index] = length > 0 and tvb(at + 2, length):string(ENC_UTF_8) or ""
    item:add(fields["relay.name"], tvb(at, 2 + length), names[index])
  end
  local messages = 0
  for _, at in ipairs(found.entries) do
    local length = tvb(at + 25, 4):uint()
    local entry = item:add(fields["relay.entry"], tvb(at, RELAY_ENTRY + length))
    local flags, topic, publisher = tvb(at + 8, 1):uint(), tvb(at + 17, 2):uint(), tvb(at + 19, 2):uint()
    entry:add(fields["relay.offset"], tvb(at, 8))
    for _, name in ipairs(BATCH_FLAGS) do entry:add(fields["batch." .. name], tvb(at + 8, 1)) end
    entry:add(fields["batch.published_us"], tvb(at + 9, 8))
    entry:add(fields["relay.topic"], tvb(at + 17, 2))
    entry:add(fields["relay.publisher"], tvb(at + 19, 2))
    entry:add(fields["relay.count"], tvb(at + 21, 4))
    entry:add(fields["relay.length"], tvb(at + 25, 4))
    if names[topic + 1] and names[publisher + 1] then
      entry:add(fields["batch.topic"], tvb(at + 17, 2), names[topic + 1]):set_generated()
      entry:add(fields["batch.publisher"], tvb(at + 19, 2), names[publisher + 1]):set_generated()
    else
      entry:add_proto_expert_info(experts.malformed, "a place outside the list of names")
    end
    local count = tvb(at + 21, 4):uint()
    -- An empty tvb does not exist: a lone message without a payload ends before the next entry.
    local rest = tvb(0, at + RELAY_ENTRY + length):tvb()
    if show_batch_rest(rest, at + RELAY_ENTRY, entry, flags) then
      entry:set_text("Entry: " .. batch_title(flags, count, names[topic + 1]))
    end
    messages = messages + count
  end
  item:set_text(string.format("Range of a log: offsets %s to %s, %d messages", tostring(tvb(1, 8):uint64()),
    tostring(tvb(9, 8):uint64()), messages))
  context.info("relay of " .. messages .. " messages")
end

local function show_work(tvb, tree, context)
  local item = tree:add(fields["work"], tvb())
  local length = tvb:len() >= 4 and tvb(0, 4):uint() or -1
  if length <= 0 or length > tvb:len() - 4 then
    item:add_proto_expert_info(experts.malformed, "the work group is cut short")
    return
  end
  local value = cbor_map(tvb(4, length):tvb(), item)
  if not value then return end
  local kind = value.map.kind and value.map.kind.text or "?"
  item:set_text("Work group: " .. kind)
  item:add(fields["work.kind"], tvb(4, length), kind)
  item:add(fields["work.json"], tvb(4, length), value.json)
  for _, key in ipairs(value.keys) do
    item:add(fields["work.field"], tvb(4, length), key .. ": " .. value.map[key].json)
  end
  if tvb:len() > 4 + length then item:add(fields["work.payloads"], tvb(4 + length)) end
  context.info(kind)
end

-- A record of a work channel whose beginning was not captured has a map with `kind` behind its length.
local function looks_like_work(tvb)
  if tvb:len() < 10 or tvb(0, 4):uint() > tvb:len() - 4 then return false end
  return math.floor(tvb(4, 1):uint() / 32) == 5 and tvb(5, 5):raw() == "\100kind"
end

local function show_record(tvb, tree, context, channel, record, is_unreliable)
  local item = tree:add(fields["record"], tvb())
  item:set_text(string.format("Record %d of channel %d", record, channel))
  item:add(fields["record.bytes"], tvb:len())
  if tvb:len() == 0 then
    return
  elseif channel == 0 or (record == 0 and not is_unreliable and math.floor(tvb(0, 1):uint() / 32) == 5) then
    local kind = show_control(tvb, item, context, channel)
    if channel ~= 0 and not context.visited then context.direction.channels[channel] = kind end
  elseif context.direction.channels[channel] == "work" or looks_like_work(tvb) then
    show_work(tvb, item, context)
  elseif context.direction.channels[channel] == "relay" then
    show_relay(tvb, item, context, scan_relay(tvb))
  elseif tvb(0, 1):uint() == 0xff then
    if tvb:len() > 1 then show_control(tvb(1):tvb(), item, context, channel) end
  else
    -- The record 0 of a bridge's channel may not have been captured. A batch is never consistent as such a range.
    local range = scan_relay(tvb)
    if range then
      show_relay(tvb, item, context, range)
      return
    end
    local at = 0
    while at and at < tvb:len() do at = show_batch(tvb, at, item, context) end
  end
end

-- Adds a fragment, and returns the record if it is complete now.
local function join(direction, channel, record, offset, body, is_last)
  local key = channel .. " " .. record
  local parts = direction.records[key]
  if parts == "done" then return nil end
  if not parts then
    parts = { at = {}, bytes = 0, length = nil }
    direction.records[key] = parts
  end
  if is_last then parts.length = offset + #body end
  if parts.at[offset] == nil or #parts.at[offset] < #body then
    local added = #body - #(parts.at[offset] or "")
    if offset + #body > MAX_RECORD_BYTES or held_bytes + added > MAX_HELD_BYTES then return nil end
    parts.at[offset] = body
    parts.bytes, held_bytes = parts.bytes + added, held_bytes + added
  end
  if not parts.length or parts.bytes < parts.length then return nil end
  local offsets = {}
  for at in pairs(parts.at) do offsets[#offsets + 1] = at end
  table.sort(offsets)
  local joined, reached = {}, 0
  for _, at in ipairs(offsets) do
    if at > reached then return nil end
    local text = parts.at[at]
    if at + #text > reached then
      joined[#joined + 1] = text:sub(reached - at + 1)
      reached = at + #text
    end
  end
  if reached < parts.length then return nil end
  held_bytes = held_bytes - parts.bytes
  direction.records[key] = "done"
  return table.concat(joined)
end

-- frames --------------------------------------------------------------------------------------------------------------

local function show_data(tvb, at, item, context, flags)
  local begin = at
  for _, name in ipairs({ "has_length", "whole", "last", "has_position", "unreliable", "end" }) do
    item:add(fields["data." .. name], tvb(at, 1))
  end
  local is_whole, is_unreliable = band(flags, 0x02) ~= 0, band(flags, 0x10) ~= 0
  local need = 9 + (is_whole and 0 or 4) + (band(flags, 0x08) ~= 0 and 4 or 0) + (band(flags, 0x01) ~= 0 and 2 or 0)
  if at + need > tvb:len() then return nil, "the frame is cut short" end
  local channel, record, offset = tvb(at + 1, 4):uint(), tvb(at + 5, 4):uint(), 0
  item:add(fields["data.channel"], tvb(at + 1, 4))
  item:add(fields["data.record"], tvb(at + 5, 4))
  at = at + 9
  if not is_whole then
    offset = tvb(at, 4):uint()
    item:add(fields["data.offset"], tvb(at, 4))
    at = at + 4
  end
  if band(flags, 0x08) ~= 0 then
    item:add(fields["data.position"], tvb(at, 4))
    at = at + 4
  end
  local length = tvb:len() - at
  if band(flags, 0x01) ~= 0 then
    length = tvb(at, 2):uint()
    item:add(fields["data.length"], tvb(at, 2))
    at = at + 2
    if at + length > tvb:len() then return nil, "the data is cut short" end
  end
  local body = length > 0 and tvb(at, length):raw() or ""
  if length > 0 then item:add(fields["data.body"], tvb(at, length)) end
  local found = context.found()
  if not context.visited then
    if not is_unreliable then
      local key = channel .. " " .. record .. " " .. offset
      local first = context.direction.fragments[key]
      if first then
        found.first_sent_in = first
      else
        context.direction.fragments[key] = context.number
      end
    end
    if is_unreliable or (is_whole and not found.first_sent_in) then
      found.record = body
      if not is_unreliable then context.direction.records[channel .. " " .. record] = "done" end
    elseif not is_whole then
      found.record = join(context.direction, channel, record, offset, body, band(flags, 0x04) ~= 0)
    elseif context.direction.records[channel .. " " .. record] ~= "done" then
      found.record = body
      context.direction.records[channel .. " " .. record] = "done"
    end
  end
  item:append_text(string.format(": channel %d, record %d%s, %d bytes", channel, record,
    is_whole and "" or " from " .. offset, length))
  if found.first_sent_in then
    item:add(fields["data.first_sent_in"], found.first_sent_in):set_generated()
    item:add_proto_expert_info(experts.retransmit)
    context.info("again")
  end
  if found.record then
    local whole
    if is_whole and length > 0 then
      whole = tvb(at, length):tvb()
    elseif #found.record > 0 then
      whole = ByteArray.new(found.record, true):tvb("Record")
    end
    if whole then
      show_record(whole, item, context, channel, record, is_unreliable)
    else
      local empty = item:add(fields["record"], tvb(begin, 1))
      empty:set_text(string.format("Record %d of channel %d, empty", record, channel))
      empty:add(fields["record.bytes"], 0)
    end
  end
  return at + length
end

-- Frames of a fixed layout: their fields with sizes.
local LAYOUTS = {
  [0x01] = {},
  [0x02] = { { "hello.connection_id", 8 }, { "hello.nonce", 16 } },
  [0x03] = { { "cookie.cookie", 20 }, { "cookie.nonce", 16 } },
  [0x04] = { { "connect.connection_id", 8 }, { "connect.nonce", 16 }, { "connect.cookie", 20 } },
  [0x05] = { { "accept.connection_id", 8 }, { "accept.nonce", 16 }, { "accept.token", 16 } },
  [0x06] = { { "refuse.nonce", 16 }, { "refuse.code", 2 } },
  [0x09] = { { "confirm.channel", 4 }, { "confirm.sequence", 8 }, { "confirm.reached", 4 } },
  [0x0a] = { { "credit.channel", 4 }, { "credit.limit", 8 } },
  [0x0b] = { { "blocked.channel", 4 }, { "blocked.limit", 8 } },
  [0x0c] = { { "path_probe.challenge", 8 } },
  [0x0d] = { { "path_response.challenge", 8 }, { "path_response.mac", 16 } },
  [0x0e] = { { "close.code", 2 } },
  [0x0f] = { { "reset.token", 16 } },
  [0x10] = { { "crypto.offset", 4 }, { "crypto.acknowledged", 4 } },
  [0x11] = { { "token.token", 16 } },
}

local function show_ack(tvb, at, item, kind)
  local head = kind == 0x07 and 6 or 10
  if at + head > tvb:len() then return nil, "the frame is cut short" end
  item:add(fields["ack.delay_us"], tvb(at + 1, 4))
  if kind == 0x08 then item:add(fields["ack.next_position"], tvb(at + 5, 4)) end
  local count = tvb(at + head - 1, 1):uint()
  item:add(fields["ack.count"], tvb(at + head - 1, 1))
  at = at + head
  if at + 8 * count > tvb:len() then return nil, "the frame is cut short" end
  local parts = {}
  for _ = 1, count do
    item:add(fields["ack.first"], tvb(at, 4))
    item:add(fields["ack.last"], tvb(at + 4, 4))
    local first, last = tvb(at, 4):uint(), tvb(at + 4, 4):uint()
    parts[#parts + 1] = first == last and tostring(first) or first .. "-" .. last
    at = at + 8
  end
  item:append_text(": " .. table.concat(parts, ", "))
  return at
end

-- Shows the frame at this position and returns the position after it, or nil and the reason.
local function show_frame(tvb, at, item, context)
  local kind = tvb(at, 1):uint()
  item:set_text(FRAMES[kind] or "unknown frame")
  item:add(fields["frame_type"], tvb(at, 1))
  context.info(FRAMES[kind] or "?")
  if kind == 0x00 then
    item:add(fields["padding"], tvb(at), tvb:len() - at)
    return tvb:len()
  elseif kind >= 0x40 and kind <= 0x7f then
    return show_data(tvb, at, item, context, kind - 0x40)
  elseif kind == 0x07 or kind == 0x08 then
    return show_ack(tvb, at, item, kind)
  end
  local layout = LAYOUTS[kind]
  if not layout then return nil, "unknown type of frame" end
  local begin, suite = at, nil
  at = at + 1
  for _, entry in ipairs(layout) do
    if at + entry[2] > tvb:len() then return nil, "the frame is cut short" end
    item:add(fields[entry[1]], tvb(at, entry[2]))
    at = at + entry[2]
  end
  if kind == 0x04 or kind == 0x05 or kind == 0x06 or kind == 0x0e or kind == 0x10 then
    if at + 2 > tvb:len() then return nil, "the frame is cut short" end
    local length = tvb(at, 2):uint()
    at = at + 2
    if at + length > tvb:len() then return nil, "the frame is cut short" end
    if kind == 0x04 or kind == 0x05 then
      if length > 0 then
        local value = cbor_map(tvb(at, length):tvb(), item)
        if value then
          item:add(fields["parameters"], tvb(at, length), value.json)
          local seal = value.map.seal and value.map.seal.list
          suite = seal and seal[1] and seal[1].number
        end
      end
    elseif kind == 0x10 then
      if length > 0 then item:add(fields["crypto.body"], tvb(at, length)) end
      local session = context.direction.session
      if session and context.direction.role == "server" and tvb(begin + 1, 4):uint() == 0 and length >= 43 then
        session.random = tvb(at + 11, 32):bytes():tohex():lower() -- in the client hello
      end
    else
      local name = kind == 0x06 and "refuse.reason" or "close.reason"
      item:add(fields[name], length > 0 and tvb(at, length) or tvb(at - 2, 2), length > 0 and tvb(at, length):string() or "")
    end
    at = at + length
  end
  if kind == 0x0e then
    if at + 16 > tvb:len() then return nil, "the frame is cut short" end
    item:add(fields["close.mac"], tvb(at, 16))
    at = at + 16
  end
  if kind == 0x05 and not context.visited then
    link(context.direction.id, tvb(begin + 1, 8):bytes():tohex()).suite = suite
    context.direction = directions[context.direction.id]
  end
  return at
end

-- sealed packets ------------------------------------------------------------------------------------------------------

-- Their frames are decrypted with the secrets of a key log (GODWIT_KEY_LOG), if the handshake is in the capture. Tags
-- are not checked: a forged packet shows as malformed frames.

local function rotate(value, count) return bor(lshift(value, count), rshift(value, 32 - count)) end

local function word_of(text, at)
  local a, b, c, d = text:byte(at, at + 3)
  return ((a * 256 + b) * 256 + c) * 256 + d
end

local function word_text(value)
  value = value % 4294967296
  return string.char(math.floor(value / 16777216), math.floor(value / 65536) % 256, math.floor(value / 256) % 256, value % 256)
end

local function xor_text(text, key)
  local out = {}
  for at = 1, #text do out[at] = string.char(bxor(text:byte(at), key:byte(at))) end
  return table.concat(out)
end

-- SHA-256 (FIPS 180-4). The constants are the first bits of roots of primes.
local sha_constants, sha_start = {}, {}
do
  local function fraction(value) return math.floor((value - math.floor(value)) * 4294967296) end
  local prime = 2
  while #sha_constants < 64 do
    local is_prime = true
    for divisor = 2, math.floor(prime ^ 0.5) do
      if prime % divisor == 0 then is_prime = false end
    end
    if is_prime then
      if #sha_start < 8 then sha_start[#sha_start + 1] = fraction(prime ^ 0.5) end
      sha_constants[#sha_constants + 1] = fraction(prime ^ (1 / 3))
    end
    prime = prime + 1
  end
end

local function sha256(text)
  local length = #text
  text = text .. "\128" .. string.rep("\0", (55 - length) % 64) .. "\0\0\0\0" .. word_text(length * 8)
  local state = {}
  for index = 1, 8 do state[index] = sha_start[index] end
  for begin = 1, #text, 64 do
    local words = {}
    for index = 1, 16 do words[index] = word_of(text, begin + 4 * (index - 1)) end
    for index = 17, 64 do
      local first, second = words[index - 15], words[index - 2]
      local small = bxor(bxor(rotate(first, 25), rotate(first, 14)), rshift(first, 3))
      local large = bxor(bxor(rotate(second, 15), rotate(second, 13)), rshift(second, 10))
      words[index] = (words[index - 16] + small + words[index - 7] + large) % 4294967296
    end
    local a, b, c, d, e, f, g, h = state[1], state[2], state[3], state[4], state[5], state[6], state[7], state[8]
    for index = 1, 64 do
      local sum = bxor(bxor(rotate(e, 26), rotate(e, 21)), rotate(e, 7))
      local choice = bxor(band(e, f), band(bxor(e, 4294967295), g))
      local first = h + sum + choice + sha_constants[index] + words[index]
      local other = bxor(bxor(rotate(a, 30), rotate(a, 19)), rotate(a, 10))
      local majority = bxor(bxor(band(a, b), band(a, c)), band(b, c))
      h, g, f, e = g, f, e, (d + first) % 4294967296
      d, c, b, a = c, b, a, (first + other + majority) % 4294967296
    end
    local now = { a, b, c, d, e, f, g, h }
    for index = 1, 8 do state[index] = (state[index] + now[index]) % 4294967296 end
  end
  local out = {}
  for index = 1, 8 do out[index] = word_text(state[index]) end
  return table.concat(out)
end

-- HKDF-Expand (RFC 5869) to at most 32 bytes.
local function expand(secret, label, length)
  local key = secret .. string.rep("\0", 64 - #secret)
  local inner = sha256(xor_text(key, string.rep("\54", 64)) .. "godwit 1 " .. label .. "\1")
  return sha256(xor_text(key, string.rep("\92", 64)) .. inner):sub(1, length)
end

-- AES-128 (FIPS 197), encryption of a block.
local aes_box = {}
do
  local p, q = 1, 1
  repeat
    p = band(bxor(bxor(p, lshift(p, 1)), p >= 128 and 0x1b or 0), 0xff)
    q = bxor(q, lshift(q, 1))
    q = bxor(q, lshift(q, 2))
    q = band(bxor(q, lshift(q, 4)), 0xff)
    if q >= 128 then q = bxor(q, 0x09) end
    local turned = bxor(bxor(lshift(q, 1), lshift(q, 2)), bxor(lshift(q, 3), lshift(q, 4)))
    turned = bxor(bxor(q, band(turned, 0xff)), rshift(turned, 8))
    aes_box[p] = band(bxor(turned, 0x63), 0xff)
  until p == 1
  aes_box[0] = 0x63
end

local function doubled(value) return band(bxor(lshift(value, 1), value >= 128 and 0x1b or 0), 0xff) end

local function aes_key(key)
  local bytes, round = { key:byte(1, 16) }, 1
  for at = 17, 176, 4 do
    local a, b, c, d = bytes[at - 4], bytes[at - 3], bytes[at - 2], bytes[at - 1]
    if at % 16 == 1 then
      a, b, c, d = bxor(aes_box[b], round), aes_box[c], aes_box[d], aes_box[a]
      round = doubled(round)
    end
    bytes[at], bytes[at + 1] = bxor(bytes[at - 16], a), bxor(bytes[at - 15], b)
    bytes[at + 2], bytes[at + 3] = bxor(bytes[at - 14], c), bxor(bytes[at - 13], d)
  end
  return bytes
end

local function aes_block(key, text)
  local state = { text:byte(1, 16) }
  for at = 1, 16 do state[at] = bxor(state[at], key[at]) end
  for round = 1, 10 do
    local moved = {}
    for at = 0, 15 do moved[at + 1] = aes_box[state[(at + 4 * (at % 4)) % 16 + 1]] end
    if round < 10 then
      for at = 1, 13, 4 do
        local a, b, c, d = moved[at], moved[at + 1], moved[at + 2], moved[at + 3]
        local all = bxor(bxor(a, b), bxor(c, d))
        moved[at] = bxor(a, bxor(all, doubled(bxor(a, b))))
        moved[at + 1] = bxor(b, bxor(all, doubled(bxor(b, c))))
        moved[at + 2] = bxor(c, bxor(all, doubled(bxor(c, d))))
        moved[at + 3] = bxor(d, bxor(all, doubled(bxor(d, a))))
      end
    end
    for at = 1, 16 do state[at] = bxor(moved[at], key[16 * round + at]) end
  end
  return string.char((table.unpack or unpack)(state))
end

-- ChaCha20 (RFC 8439), a block of the key stream.
local function little(text, at)
  local a, b, c, d = text:byte(at, at + 3)
  return ((d * 256 + c) * 256 + b) * 256 + a
end

local function chacha_block(key, counter, nonce)
  local start = { 0x61707865, 0x3320646e, 0x79622d32, 0x6b206574 }
  for index = 0, 7 do start[5 + index] = little(key, 1 + 4 * index) end
  start[13] = counter
  for index = 0, 2 do start[14 + index] = little(nonce, 1 + 4 * index) end
  local x = {}
  for index = 1, 16 do x[index] = start[index] end
  local function quarter(a, b, c, d)
    x[a] = (x[a] + x[b]) % 4294967296
    x[d] = rotate(bxor(x[d], x[a]), 16) % 4294967296
    x[c] = (x[c] + x[d]) % 4294967296
    x[b] = rotate(bxor(x[b], x[c]), 12) % 4294967296
    x[a] = (x[a] + x[b]) % 4294967296
    x[d] = rotate(bxor(x[d], x[a]), 8) % 4294967296
    x[c] = (x[c] + x[d]) % 4294967296
    x[b] = rotate(bxor(x[b], x[c]), 7) % 4294967296
  end
  for _ = 1, 10 do
    quarter(1, 5, 9, 13) quarter(2, 6, 10, 14) quarter(3, 7, 11, 15) quarter(4, 8, 12, 16)
    quarter(1, 6, 11, 16) quarter(2, 7, 12, 13) quarter(3, 8, 9, 14) quarter(4, 5, 10, 15)
  end
  local out = {}
  for index = 1, 16 do out[index] = word_text(x[index] + start[index]):reverse() end
  return table.concat(out)
end

local function decrypt(keys, nonce, text)
  local stream, block_bytes = {}, keys.aes and 16 or 64
  for index = 1, math.ceil(#text / block_bytes) do
    stream[index] = keys.aes and aes_block(keys.aes, nonce .. word_text(index + 1)) or chacha_block(keys.key, index, nonce)
  end
  return xor_text(text, table.concat(stream))
end

-- The secrets of the key log, by the random bytes of the client hello.
local function read_key_log()
  local found = {}
  local file = godwit.prefs.key_log ~= "" and io.open(godwit.prefs.key_log, "r")
  if not file then return found end
  for line in file:lines() do
    local side, random, secret = line:match("^GODWIT_(%u+)_SECRET (%x+) (%x+)%s*$")
    if side and #random == 64 and #secret == 64 then
      found[random:lower() .. " " .. side] = secret:gsub("%x%x", function(digits) return string.char(tonumber(digits, 16)) end)
    end
  end
  file:close()
  return found
end

-- The keys of a direction after this number of updates, or nil.
local function keys_of(direction, generation)
  local session = direction.session
  if not session or not session.random or not session.suite then return nil end
  secrets = secrets or read_key_log()
  local known = direction.keys
  if #known == 0 then
    local secret = secrets[session.random .. (direction.role == "server" and " CLIENT" or " SERVER")]
    if not secret then return nil end
    known[1] = { secret = secret }
  end
  while #known <= generation do known[#known + 1] = { secret = expand(known[#known].secret, "update", 32) } end
  local keys = known[generation + 1]
  if not keys.iv then
    keys.iv = expand(keys.secret, "iv", 12)
    keys.key = expand(keys.secret, "key", session.suite == 1 and 16 or 32)
    keys.aes = session.suite == 1 and aes_key(keys.key) or nil
  end
  return keys
end

-- Returns the frames of a sealed packet, or nil. Called once for each packet, in the order of the capture.
local function open_frames(tvb, direction)
  local number = tvb(9, 4):uint()
  local phase = band(tvb(0, 1):uint(), 0x02) == 0 and 0 or 1
  local generation = direction.generation
  if phase ~= generation % 2 then
    if number > (direction.newest or -1) then
      generation = generation + 1
      direction.generation = generation
    else
      generation = generation - 1 -- a late packet of the former key
    end
  end
  if number > (direction.newest or -1) then direction.newest = number end
  if generation < 0 then return nil end
  local keys = keys_of(direction, generation)
  if not keys then return nil end
  local nonce = keys.iv:sub(1, 4) .. xor_text(keys.iv:sub(5), "\0\0\0\0" .. tvb(9, 4):raw())
  return decrypt(keys, nonce, tvb(HEADER_BYTES, tvb:len() - HEADER_BYTES - TAG_BYTES):raw())
end

-- packets -------------------------------------------------------------------------------------------------------------

local function track_number(direction, number, found, frame_number)
  local first = direction.numbers[number]
  if first then
    found.repeated_of = first
    return
  end
  direction.numbers[number] = frame_number
  local largest = direction.largest
  if not largest then
    direction.largest = number
  elseif number == largest + 1 then
    direction.largest = number
  elseif number > largest and number - largest < 2147483648 then
    found.missing = { largest + 1, number - 1 }
    direction.largest = number
  elseif largest > number and largest - number < 2147483648 then
    found.is_late = true
  else
    direction.largest = number -- the lower half has wrapped
  end
end

-- Returns what the first pass has found about a packet, and whether this is a later pass.
local function fact_of(tvb, pinfo, is_numbered)
  local key = pinfo.number * MAX_TRAIN + place_in_train
  local fact = facts[key]
  if fact then return fact, true end
  fact = { data = {}, direction = direction_of(tvb(1, 8):bytes():tohex(), pinfo) }
  facts[key] = fact
  if is_numbered then track_number(fact.direction, tvb(9, 4):uint(), fact, pinfo.number) end
  return fact, false
end

local function show_fact(tree, fact)
  if fact.direction.role then tree:add(fields["to"], fact.direction.role):set_generated() end
  if fact.repeated_of then tree:add_proto_expert_info(experts.repeated, "Seen before in frame " .. fact.repeated_of) end
  if fact.is_late then tree:add_proto_expert_info(experts.late) end
  if fact.missing then
    tree:add_proto_expert_info(experts.missing,
      string.format("Packets %d to %d are missing before this one: lost, skipped or late", fact.missing[1], fact.missing[2]))
  end
end

-- Shows frames from a position on, and returns them in a few words.
local function show_frames(frames, at, tree, fact, visited, pinfo)
  local words, place = {}, 0
  local context = {
    direction = fact.direction, visited = visited, number = pinfo.number,
    info = function(word) words[#words + 1] = word end,
    found = function() -- what the first pass has found about the next frame or control message
      place = place + 1
      if not fact.data[place] then fact.data[place] = {} end
      return fact.data[place]
    end,
  }
  while at < frames:len() do
    local item = tree:add(fields["frame"], frames(at, frames:len() - at))
    local after, problem = show_frame(frames, at, item, context)
    if not after then
      item:add_proto_expert_info(experts.malformed, problem)
      words[#words + 1] = "malformed"
      break
    end
    item:set_len(after - at)
    at = after
  end
  return table.concat(words, " ")
end

local function show_sealed(tvb, pinfo, tree)
  local length = tvb:len()
  if length <= HEADER_BYTES + TAG_BYTES then
    tree:add_proto_expert_info(experts.malformed, "the packet is cut short")
    return "cut short"
  end
  tree:add(fields["encrypted"], tvb(HEADER_BYTES, length - HEADER_BYTES - TAG_BYTES))
  tree:add(fields["tag"], tvb(length - TAG_BYTES, TAG_BYTES))
  local fact, visited = fact_of(tvb, pinfo, true)
  show_fact(tree, fact)
  if not visited then fact.frames = open_frames(tvb, fact.direction) end
  local words = ""
  if fact.frames then
    tree:add(fields["opened"], true):set_generated()
    words = " " .. show_frames(ByteArray.new(fact.frames, true):tvb("Frames"), 0, tree, fact, visited, pinfo)
  end
  return string.format("%d: sealed, %d bytes%s", tvb(9, 4):uint(), length, words)
end

local function show_packet(tvb, pinfo, root)
  local length = tvb:len()
  local first = tvb(0, 1):uint()
  local is_sealed = first == 0x11 or first == 0x13
  local tree = root:add(godwit, tvb())
  tree:add(fields["version"], tvb(0, 1))
  tree:add(fields["flags"], tvb(0, 1))
  tree:add(fields["sealed"], tvb(0, 1))
  tree:add(fields["key_phase"], tvb(0, 1))
  tree:add(fields["connection_id"], tvb(1, 8))
  tree:add(fields["number"], tvb(9, 4))
  tree:add(fields["length"], tvb(), length):set_generated()
  if is_sealed then
    return show_sealed(tvb, pinfo, tree)
  end
  local is_intact = crc32c(tvb(0, length):raw()) == INTACT
  local checksum = tree:add_le(fields["checksum"], tvb(length - 4, 4))
  tree:add(fields["checksum_status"], tvb(length - 4, 4), is_intact and "good" or "bad"):set_generated()
  if not is_intact then
    checksum:add_proto_expert_info(experts.checksum)
    return "bad checksum"
  end
  if first ~= 0x10 then
    tree:add_proto_expert_info(experts.version)
    return "version " .. math.floor(first / 16)
  end

  local kind = tvb(HEADER_BYTES, 1):uint()
  local is_handshake = (kind >= 0x02 and kind <= 0x06) or kind == 0x0f or kind == 0x10
  local fact, visited = fact_of(tvb, pinfo, not is_handshake)
  show_fact(tree, fact)
  local words = show_frames(tvb(0, length - 4):tvb(), HEADER_BYTES, tree, fact, visited, pinfo)
  return string.format("%d: %s", tvb(9, 4):uint(), words)
end

-- Returns the size of the first packet: less than the datagram's if another packet of the connection follows. A packet
-- with a checksum ends with it. A sealed one is followed by one with the next number.
local function first_packet_bytes(tvb)
  local data = tvb(0):raw()
  local connection_id, is_sealed = data:sub(2, 9), data:byte(1) ~= 0x10
  local at = SMALLEST_PACKET + 2
  for _ = 1, MAX_CANDIDATES do
    local found = data:find(connection_id, at, true)
    if not found or #data - found + 2 < SMALLEST_PACKET then break end
    local length = found - 2
    local kind = data:byte(length + 1)
    if is_sealed and (kind == 0x11 or kind == 0x13) then
      if (word_of(data, 10) + 1) % 4294967296 == word_of(data, length + 10) then return length end
    elseif not is_sealed and kind == 0x10 and crc32c(data:sub(1, length)) == INTACT then
      return length
    end
    at = found + 1
  end
  return #data
end

function godwit.dissector(tvb, pinfo, root)
  local length = tvb:len()
  if length < SMALLEST_PACKET then return 0 end
  pinfo.cols.protocol = "Godwit"
  local size, texts = first_packet_bytes(tvb), {}
  for at = 0, math.min(length, size * MAX_TRAIN) - SMALLEST_PACKET, size do
    place_in_train = #texts
    texts[#texts + 1] = show_packet(tvb(at, math.min(size, length - at)):tvb(), pinfo, root)
  end
  place_in_train = 0
  pinfo.cols.info = table.concat(texts, " | ")
  return length
end


local function is_godwit(tvb, pinfo, root)
  local length = tvb:len()
  if length < SMALLEST_PACKET or length > 65000 then return false end
  local first = tvb(0, 1):uint()
  if first == 0x11 or first == 0x13 then
    if not directions[tvb(1, 8):bytes():tohex()] then return false end
  elseif first ~= 0x10 or crc32c(tvb(0, first_packet_bytes(tvb)):raw()) ~= INTACT then
    return false
  end
  pinfo.conversation = godwit
  godwit.dissector(tvb, pinfo, root)
  return true
end

godwit:register_heuristic("udp", is_godwit)
local ports_in_use
local function listen()
  local udp = DissectorTable.get("udp.port")
  if ports_in_use then udp:remove(ports_in_use, godwit) end
  ports_in_use = godwit.prefs.ports
  udp:add(ports_in_use, godwit)
end
listen()
godwit.prefs_changed = listen
