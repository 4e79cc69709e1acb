#include "shadowib/cm/connection_id.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "shadowib/base/lasting.h"
#include "shadowib/cm/connection.h"
#include "shadowib/cm/listeners.h"

namespace shadowib::cm {
namespace {

void update_signal(Channel& channel, bool was_empty) {
  if (was_empty == channel.events.empty()) return;
  std::uint64_t one = 1;
  [[maybe_unused]] auto n =
      was_empty ? ::write(channel.fd, &one, sizeof(one)) : ::read(channel.fd, &one, sizeof(one));
}

}  // namespace

Manager& manager() { return Lasting<Manager>::get(); }

std::uint32_t random_bits() {
  std::uint32_t value = 0;
  [[maybe_unused]] int rc = ::getentropy(&value, sizeof(value));
  return value;
}

std::uint32_t next_local_id() {
  std::uint32_t& last = manager().last_local_id;
  if (last == 0) last = random_bits();
  if (++last == 0) ++last;
  return last;
}

Event event_of(ConnectionId& id, EventType type, int status) {
  Event event{};
  event.report.uid = id.uid;
  event.report.id = id.number;
  event.report.event = static_cast<std::uint32_t>(type);
  event.report.status = static_cast<std::uint32_t>(status);
  event.id = &id;
  return event;
}

void report(ConnectionId& id, const Event& event) {
  if (id.uid == 0) return;
  const bool was_empty = id.channel->events.empty();
  id.channel->events.push_back(event);
  update_signal(*id.channel, was_empty);
}

bool take_event(Channel& channel, Event* event) {
  if (channel.events.empty()) return false;
  *event = channel.events.front();
  channel.events.pop_front();
  update_signal(channel, false);
  return true;
}

void withdraw_events(ConnectionId& id) {
  std::vector<ConnectionId*> children;
  Channel& channel = *id.channel;
  const bool was_empty = channel.events.empty();
  std::erase_if(channel.events, [&](const Event& event) {
    if (event.id == &id && event.child != nullptr) children.push_back(event.child);
    return event.id == &id || event.child == &id;
  });
  update_signal(channel, was_empty);
  for (ConnectionId* child : children) destroy_id(*child);
}

void withdraw_membership(ConnectionId& id, const Membership& membership) {
  Channel& channel = *id.channel;
  const bool was_empty = channel.events.empty();
  std::erase_if(channel.events, [&](const Event& event) { return event.membership == &membership; });
  update_signal(channel, was_empty);
}

void move_events(ConnectionId& id, Channel& to) {
  Channel& from = *id.channel;
  const bool from_was_empty = from.events.empty(), to_was_empty = to.events.empty();
  for (const Event& event : from.events)
    if (event.id == &id) to.events.push_back(event);
  std::erase_if(from.events, [&](const Event& event) { return event.id == &id; });
  update_signal(from, from_was_empty);
  update_signal(to, to_was_empty);
  id.channel = &to;
}

Channel* find_channel(int fd) {
  for (auto& channel : manager().channels)
    if (channel->fd == fd) return channel.get();
  return nullptr;
}

ConnectionId* find_id(std::uint32_t number) {
  auto it = manager().ids.find(number);
  return it != manager().ids.end() ? it->second.get() : nullptr;
}

ConnectionId& make_id(Channel& channel, std::uint64_t uid, std::uint16_t port_space, std::uint8_t qp_type) {
  auto& ids = manager().ids;
  std::uint32_t number = 1;  // the smallest free one: librdmacm keeps a table by number
  for (auto it = ids.begin(); it != ids.end() && it->first == number; ++it) ++number;
  auto id = std::make_unique<ConnectionId>();
  id->number = number;
  id->uid = uid;
  id->channel = &channel;
  id->port_space = port_space;
  id->qp_type = qp_type;
  return *ids.emplace(number, std::move(id)).first->second;
}

void destroy_id(ConnectionId& id) {
  end_connection(id);
  withdraw_events(id);
  for (auto& [number, other] : manager().ids)
    if (other->listener == &id) other->listener = nullptr;
  if (id.has_claim) release_port(id.port_space, port_of(id.source));
  manager().ids.erase(id.number);
}

}  // namespace shadowib::cm
