#include "hooks/launcher/board.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "hooks/job/protocol.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace shadowib {
namespace {

std::string hash(const void* data, std::size_t bytes) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(XXH3_64bits(data, bytes)));
  return text;
}

std::vector<std::uint32_t> parse_ranks(const std::string& text) {
  std::vector<std::uint32_t> ranks;
  for (const char* at = text.c_str(); *at != '\0';) {
    char* end = nullptr;
    ranks.push_back(static_cast<std::uint32_t>(std::strtoul(at, &end, 10)));
    if (end == at) break;
    at = *end == ',' ? end + 1 : end;
  }
  return ranks;
}

}  // namespace

std::string fence_set(std::vector<std::uint32_t>* ranks, std::uint32_t namespace_size) {
  std::sort(ranks->begin(), ranks->end());
  ranks->erase(std::unique(ranks->begin(), ranks->end()), ranks->end());
  if (ranks->size() == namespace_size) return "all";
  return hash(ranks->data(), ranks->size() * sizeof(std::uint32_t));
}

std::string fence_set(RanksByNamespace* ranks) {
  std::string text;
  for (auto& [name, of_it] : *ranks) {
    std::sort(of_it.begin(), of_it.end());
    of_it.erase(std::unique(of_it.begin(), of_it.end()), of_it.end());
    text += name;
    for (const std::uint32_t rank : of_it) text += " " + std::to_string(rank);
    text += "\n";
  }
  return "several-" + hash(text.data(), text.size());
}

std::string encode_abort(const std::string& name, const AbortRequest& request) {
  Fields fields;
  fields["namespace"] = name;
  fields["rank"] = std::to_string(request.from);
  fields["status"] = std::to_string(request.status);
  fields["text"] = request.message;
  std::string& ranks = fields["ranks"];
  for (std::uint32_t rank : request.ranks) ranks += (ranks.empty() ? "" : ",") + std::to_string(rank);
  return encode_fields(fields);
}

bool decode_abort(const std::string& text, std::string* name, AbortRequest* request) {
  Fields fields;
  if (!decode_fields(text, &fields) || !fields.contains("namespace") || !fields.contains("rank")) return false;
  *name = fields["namespace"];
  request->from = static_cast<std::uint32_t>(std::strtoul(fields["rank"].c_str(), nullptr, 10));
  request->status = std::atoi(fields["status"].c_str());
  request->message = fields["text"];
  request->ranks = parse_ranks(fields["ranks"]);
  return true;
}

std::string encode_event(const LauncherEvent& event) {
  const auto number = [](auto n) { return StoredValue{0, std::to_string(n)}; };
  return encode_values({{"status", number(event.status)},
                        {"range", number(event.range)},
                        {"source", {0, event.source}},
                        {"rank", number(event.rank)},
                        {"host", {0, event.host}},
                        {"ninfo", number(event.ninfo)},
                        {"info", {0, event.info}}});
}

bool decode_event(const std::string& text, LauncherEvent* event) {
  StoredValues values;
  if (!decode_values(text, &values)) return false;
  for (const char* name : {"status", "range", "source", "rank", "host", "ninfo", "info"})
    if (!values.contains(name)) return false;
  const auto number = [&](const char* name) { return std::strtoll(values[name].bytes.c_str(), nullptr, 10); };
  event->status = static_cast<std::int32_t>(number("status"));
  event->range = static_cast<std::uint8_t>(number("range"));
  event->source = std::move(values["source"].bytes);
  event->rank = static_cast<std::uint32_t>(number("rank"));
  event->host = std::move(values["host"].bytes);
  event->ninfo = static_cast<std::uint32_t>(number("ninfo"));
  event->info = std::move(values["info"].bytes);
  return true;
}

std::string abort_key(const std::string& epoch) { return epoch + "/control/abort"; }

std::string Board::namespace_key(const std::string& name) { return hash(name.data(), name.size()); }

Board::Board(Exchange* exchange, const std::string& epoch, const std::string& name)
    : exchange_(exchange),
      event_mark_(epoch + "/control/event"),
      root_(epoch + "/launcher/" + namespace_key(name) + "/") {}

Status Board::publish_puts(std::uint32_t rank, const StoredValues& puts) {
  return exchange_->publish(key("puts/" + std::to_string(rank)), encode_values(puts));
}

Status Board::find_put(std::uint32_t rank, const std::string& name, Answer* answer, StoredValue* value) {
  std::string text;
  bool found = false;
  SHADOWIB_TRY(exchange_->get(key("puts/" + std::to_string(rank)), &text, &found));
  *answer = Answer::kNotCommitted;
  if (!found) return {};
  StoredValues puts;
  if (!decode_values(text, &puts))
    return Status::of(Code::kCorrupt, 0, "what rank %u has put stands malformed in the exchange", rank);
  const auto at = puts.find(name);
  *answer = at == puts.end() ? Answer::kNotPut : Answer::kFound;
  if (at != puts.end()) *value = at->second;
  return {};
}

Status Board::find_put_of_any(std::uint32_t size, const std::string& name, bool* found, StoredValue* value) {
  std::vector<std::string> keys, texts;
  for (std::uint32_t rank = 0; rank < size; ++rank) keys.push_back(key("puts/" + std::to_string(rank)));
  std::vector<bool> there;
  SHADOWIB_TRY(exchange_->lookup(keys, &texts, &there));
  *found = false;
  for (std::uint32_t rank = 0; rank < size && !*found; ++rank) {
    StoredValues puts;
    if (there[rank] && !decode_values(texts[rank], &puts))
      return Status::of(Code::kCorrupt, 0, "what rank %u has put stands malformed in the exchange", rank);
    const auto at = puts.find(name);
    *found = at != puts.end();
    if (*found) *value = at->second;
  }
  return {};
}

Status Board::publish_fence(const std::string& set, std::uint32_t rank, std::uint64_t count) {
  return exchange_->publish(key("fence/" + set + "/" + std::to_string(rank)), std::to_string(count));
}

Status Board::look_for(const std::string& set, std::uint64_t count, std::vector<std::uint32_t>* missing) {
  std::vector<std::string> keys, values;
  for (std::uint32_t rank : *missing) keys.push_back(key("fence/" + set + "/" + std::to_string(rank)));
  for (std::uint32_t rank : *missing) keys.push_back(key("done/" + std::to_string(rank)));
  std::vector<bool> found;
  SHADOWIB_TRY(exchange_->lookup(keys, &values, &found));
  std::vector<std::uint32_t> still;
  const std::size_t n = missing->size();
  for (std::size_t i = 0; i < n; ++i) {
    const bool reached = found[i] && std::strtoull(values[i].c_str(), nullptr, 10) >= count;
    if (!reached && !found[n + i]) still.push_back((*missing)[i]);
  }
  *missing = std::move(still);
  return {};
}

Status Board::publish_done(std::uint32_t rank) { return exchange_->publish(key("done/" + std::to_string(rank)), ""); }

Status Board::list_done(std::vector<std::uint32_t>* ranks) {
  std::vector<std::string> names;
  SHADOWIB_TRY(exchange_->list(key("done"), &names));
  ranks->clear();
  for (const std::string& name : names)
    ranks->push_back(static_cast<std::uint32_t>(std::strtoul(name.c_str(), nullptr, 10)));
  return {};
}

Status Board::forget(std::uint32_t rank, std::uint64_t events_told) {
  const std::string own = std::to_string(rank);
  std::vector<std::string> sets, events;
  SHADOWIB_TRY(exchange_->remove(key("puts/" + own)));
  SHADOWIB_TRY(exchange_->remove(key("done/" + own)));
  SHADOWIB_TRY(exchange_->list(key("fence"), &sets));
  for (const std::string& set : sets) SHADOWIB_TRY(exchange_->remove(key("fence/" + set + "/" + own)));
  SHADOWIB_TRY(exchange_->remove(key("events/" + own)));
  if (events_told > 0) SHADOWIB_TRY(exchange_->publish(key("events/" + own), std::to_string(events_told)));
  SHADOWIB_TRY(exchange_->list(key("event"), &events));
  for (const std::string& event : events)
    if (event.starts_with(own + ".") && std::strtoull(event.c_str() + own.size() + 1, nullptr, 10) > events_told)
      SHADOWIB_TRY(exchange_->remove(key("event/" + event)));
  return {};
}

Status Board::publish_member(std::uint32_t member, std::uint32_t rank) {
  return exchange_->publish(key("member/" + std::to_string(member)), std::to_string(rank));
}

Status Board::find_member(std::uint32_t member, std::uint32_t* rank, bool* found) {
  std::string text;
  SHADOWIB_TRY(exchange_->get(key("member/" + std::to_string(member)), &text, found));
  if (*found) *rank = static_cast<std::uint32_t>(std::strtoul(text.c_str(), nullptr, 10));
  return {};
}

namespace {
std::string text_of(const EventName& name) { return std::to_string(name.rank) + "." + std::to_string(name.number); }
}  // namespace

Status Board::publish_event(const EventName& name, const LauncherEvent& event) {
  SHADOWIB_TRY(exchange_->publish(key("event/" + text_of(name)), encode_event(event)));
  SHADOWIB_TRY(exchange_->publish(key("events/" + std::to_string(name.rank)), std::to_string(name.number)));
  if (name.number > kEventsKept)
    (void)exchange_->remove(key("event/" + text_of({name.rank, name.number - kEventsKept}))).ok();
  return exchange_->publish(event_mark_, text_of(name));
}

Status Board::event_mark(std::string* mark) {
  bool found = false;
  SHADOWIB_TRY(exchange_->get(event_mark_, mark, &found));
  if (!found) mark->clear();
  return {};
}

Status Board::latest_events(std::uint32_t size, std::vector<std::uint64_t>* latest) {
  std::vector<std::string> keys, numbers;
  for (std::uint32_t rank = 0; rank < size; ++rank) keys.push_back(key("events/" + std::to_string(rank)));
  std::vector<bool> found;
  SHADOWIB_TRY(exchange_->lookup(keys, &numbers, &found));
  latest->assign(size, 0);
  for (std::uint32_t rank = 0; rank < size; ++rank)
    if (found[rank]) (*latest)[rank] = std::strtoull(numbers[rank].c_str(), nullptr, 10);
  return {};
}

Status Board::find_event(const EventName& name, LauncherEvent* event, bool* found) {
  std::string text;
  SHADOWIB_TRY(exchange_->get(key("event/" + text_of(name)), &text, found));
  if (*found && !decode_event(text, event))
    return Status::of(Code::kCorrupt, 0, "event %s stands malformed in the exchange", text_of(name).c_str());
  return {};
}

}  // namespace shadowib
