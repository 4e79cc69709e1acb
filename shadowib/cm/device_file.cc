#include "shadowib/cm/device_file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "shadowib/base/lock.h"
#include "shadowib/base/log.h"
#include "shadowib/base/unowned_descriptors.h"
#include "shadowib/cm/address.h"
#include "shadowib/cm/attributes.h"
#include "shadowib/cm/connection.h"
#include "shadowib/cm/courier.h"
#include "shadowib/cm/multicast.h"
#include "shadowib/cr/participant.h"
#include "shadowib/objects/events.h"

namespace shadowib::cm {
namespace {

// Descriptors that are ours: looked up at every write of librdmacm, by number.
constexpr int kMaxDescriptors = 1 << 16;
std::atomic<bool> g_is_ours[kMaxDescriptors];
std::atomic<std::uint32_t> g_filled{0};  // how often a number became one of ours

Status restarted() {
  ManagerGuard guard;
  return courier_runs() ? publish_again() : Status();
}

const Companion kCompanion = {restarted, describe_ids};

void in_child() {
  auto* inherited = &manager();
  std::vector<std::unique_ptr<Channel>> channels = std::move(inherited->channels);
  new (inherited) Manager;  // its locks may be held, its ids are the parent's
  for (auto& channel : channels) channel->foreign = true;
  inherited->channels = std::move(channels);
  forget_courier();
}

// Not at the first opening, which may hold a lock that the child needs to be rid of.
__attribute__((constructor)) void register_fork_handler() { ::pthread_atfork(nullptr, nullptr, in_child); }

// A command's body: what is there of it, the rest being zero.
template <typename T>
T body_of(const void* body, std::size_t bytes) {
  T command{};
  std::memcpy(static_cast<void*>(&command), body, std::min(bytes, sizeof(command)));
  return command;
}

// The answer, into the caller's memory, as much of it as there is room for.
template <typename T>
void respond(std::uint64_t to, std::uint16_t room, const T& answer) {
  std::memcpy(reinterpret_cast<void*>(to), &answer, std::min<std::size_t>(room, sizeof(answer)));
}

int set_option(ConnectionId& id, const rdma_ucm_set_option& command) {
  const auto* value = reinterpret_cast<const std::uint8_t*>(command.optval);
  if (command.level != RDMA_OPTION_ID) return ENOSYS;  // paths are ours to find
  switch (command.optname) {
    case RDMA_OPTION_ID_TOS:
      return command.optlen == 1 ? 0 : EINVAL;
    case RDMA_OPTION_ID_REUSEADDR:
      if (command.optlen != sizeof(int)) return EINVAL;
      id.reuse_address = body_of<int>(value, sizeof(int)) != 0;
      return 0;
    case RDMA_OPTION_ID_AFONLY:
      if (command.optlen != sizeof(int)) return EINVAL;
      id.family_only = body_of<int>(value, sizeof(int)) != 0;
      return 0;
    case RDMA_OPTION_ID_ACK_TIMEOUT:
      if (command.optlen != 1 || *value > 31) return EINVAL;
      id.ack_timeout = *value;
      return 0;
    default:
      return ENOSYS;
  }
}

// A call under way keeps a file open: it stays where it is when another thread closes the descriptor (rping does
// that, and exits).
[[noreturn]] void wait_for_ever() {
  static const std::atomic<std::uint32_t> never{0};
  for (;;) futex_wait(&never, 0);
}

// Waits until there is one, outside the lock; 0 or an errno.
int next_event(ManagerGuard& guard, int fd, Event* event) {
  const std::uint64_t serial = find_channel(fd)->serial;
  for (Channel* channel = find_channel(fd); !take_event(*channel, event); channel = find_channel(fd)) {
    guard.unlock();
    const bool waited = EventQueue::wait(fd);
    const int error = errno;
    guard.lock();
    if (Channel* now = find_channel(fd); now == nullptr || now->serial != serial) {
      guard.unlock();
      wait_for_ever();
    }
    if (!waited) return error;
  }
  return 0;
}

int get_event(ManagerGuard& guard, Channel& channel, const rdma_ucm_get_event& command, std::uint16_t room) {
  Event event;
  if (int rc = next_event(guard, channel.fd, &event); rc != 0) return rc;
  ++event.id->events_reported;
  if (event.membership != nullptr) ++event.membership->events_reported;
  respond(command.response, room, event.report);
  return 0;
}

int destroy(const rdma_ucm_destroy_id& command, std::uint16_t room) {
  ConnectionId* id = find_id(command.id);
  if (id == nullptr) return ENOENT;
  withdraw_events(*id);
  respond(command.response, room, rdma_ucm_destroy_id_resp{id->events_reported});
  destroy_id(*id);
  return 0;
}

int migrate(Channel& to, const rdma_ucm_migrate_id& command, std::uint16_t room) {
  ConnectionId* id = find_id(command.id);
  if (id == nullptr) return ENOENT;
  if (id->channel->fd != static_cast<int>(command.fd)) return EINVAL;
  move_events(*id, to);
  respond(command.response, room, rdma_ucm_migrate_resp{id->events_reported});
  return 0;
}

// A command that names an id and has no answer, or one that follows from the id's state.
int command_on_id(std::uint32_t number, std::uint16_t room, const void* body, std::size_t bytes) {
  const auto with_id = [&](auto command, auto act) {
    command = body_of<decltype(command)>(body, bytes);
    ConnectionId* id = find_id(command.id);
    return id != nullptr ? act(*id, command) : ENOENT;
  };
  switch (number) {
    case RDMA_USER_CM_CMD_BIND_IP:
      return with_id(rdma_ucm_bind_ip{}, [](ConnectionId& id, const auto& c) { return bind(id, c.addr); });
    case RDMA_USER_CM_CMD_RESOLVE_IP:
      return with_id(rdma_ucm_resolve_ip{},
                     [](ConnectionId& id, const auto& c) { return resolve_address(id, c.src_addr, c.dst_addr); });
    case RDMA_USER_CM_CMD_RESOLVE_ROUTE:
      return with_id(rdma_ucm_resolve_route{}, [](ConnectionId& id, const auto&) { return resolve_route(id); });
    case RDMA_USER_CM_CMD_QUERY_ROUTE:
      return with_id(rdma_ucm_query{}, [&](ConnectionId& id, const auto& c) {
        respond(c.response, room, route_of(id));
        return 0;
      });
    case RDMA_USER_CM_CMD_CONNECT:
      return with_id(rdma_ucm_connect{}, [](ConnectionId& id, const auto& c) { return connect(id, c.conn_param); });
    case RDMA_USER_CM_CMD_LISTEN:
      return with_id(rdma_ucm_listen{}, [](ConnectionId& id, const auto& c) {
        if (int rc = id.state == State::kIdle ? bind(id, any_address()) : 0; rc != 0) return rc;
        return id.state == State::kBound ? listen(id, c.backlog) : EINVAL;
      });
    case RDMA_USER_CM_CMD_ACCEPT:
      return with_id(rdma_ucm_accept{},
                     [](ConnectionId& id, const auto& c) { return accept(id, c.conn_param, c.uid); });
    case RDMA_USER_CM_CMD_REJECT:
      return with_id(rdma_ucm_reject{}, [](ConnectionId& id, const auto& c) {
        return reject(id, c.reason, c.private_data, c.private_data_len);
      });
    case RDMA_USER_CM_CMD_DISCONNECT:
      return with_id(rdma_ucm_disconnect{}, [](ConnectionId& id, const auto&) { return disconnect(id); });
    case RDMA_USER_CM_CMD_INIT_QP_ATTR:
      return with_id(rdma_ucm_init_qp_attr{}, [&](ConnectionId& id, const auto& c) {
        ib_uverbs_qp_attr attr;
        if (int rc = queue_pair_attributes(id, c.qp_state, &attr); rc != 0) return rc;
        respond(c.response, room, attr);
        return 0;
      });
    case RDMA_USER_CM_CMD_SET_OPTION:
      return with_id(rdma_ucm_set_option{}, [](ConnectionId& id, const auto& c) { return set_option(id, c); });
    case RDMA_USER_CM_CMD_NOTIFY:
      return with_id(rdma_ucm_notify{}, [](ConnectionId& id, const auto& c) {
        return c.event == IBV_EVENT_COMM_EST ? establish(id) : EINVAL;
      });
    case RDMA_USER_CM_CMD_JOIN_IP_MCAST:
      return with_id(rdma_ucm_join_ip_mcast{}, [&](ConnectionId& id, const auto& c) {
        std::uint32_t membership = 0;
        if (int rc = join_multicast(id, c.addr, c.uid, &membership); rc != 0) return rc;
        respond(c.response, room, rdma_ucm_create_id_resp{membership});
        return 0;
      });
    default:
      // Addresses of AF_IB and what goes with them: librdmacm asks, and does without.
      return ENOSYS;
  }
}

int run_command(ManagerGuard& guard, Channel& channel, const rdma_ucm_cmd_hdr& header, const void* body,
                std::size_t bytes) {
  switch (header.cmd) {
    case RDMA_USER_CM_CMD_CREATE_ID: {
      auto command = body_of<rdma_ucm_create_id>(body, bytes);
      ConnectionId& id = make_id(channel, command.uid, command.ps, command.qp_type);
      respond(command.response, header.out, rdma_ucm_create_id_resp{id.number});
      return 0;
    }
    case RDMA_USER_CM_CMD_DESTROY_ID:
      return destroy(body_of<rdma_ucm_destroy_id>(body, bytes), header.out);
    case RDMA_USER_CM_CMD_GET_EVENT:
      return get_event(guard, channel, body_of<rdma_ucm_get_event>(body, bytes), header.out);
    case RDMA_USER_CM_CMD_MIGRATE_ID:
      return migrate(channel, body_of<rdma_ucm_migrate_id>(body, bytes), header.out);
    case RDMA_USER_CM_CMD_LEAVE_MCAST: {
      auto command = body_of<rdma_ucm_destroy_id>(body, bytes);
      std::uint32_t reported = 0;
      if (int rc = leave_multicast(command.id, &reported); rc != 0) return rc;
      respond(command.response, header.out, rdma_ucm_destroy_id_resp{reported});
      return 0;
    }
    default:
      return command_on_id(header.cmd, header.out, body, bytes);
  }
}

ssize_t run_command_at(int fd, const void* command, std::size_t bytes) {
  rdma_ucm_cmd_hdr header;
  int error = EINVAL;
  if (bytes >= sizeof(header)) {
    std::memcpy(&header, command, sizeof(header));
    ManagerGuard guard;
    Channel* channel = find_channel(fd);
    if (channel == nullptr && header.cmd == RDMA_USER_CM_CMD_GET_EVENT) {  // closed since we were called
      guard.unlock();
      wait_for_ever();
    }
    if (channel == nullptr)
      error = EBADF;
    else if (channel->foreign)
      error = EPERM;
    else if (header.in + sizeof(header) <= bytes)
      error = run_command(guard, *channel, header, static_cast<const char*>(command) + sizeof(header), header.in);
  }
  if (error == 0) return static_cast<ssize_t>(bytes);
  errno = error;
  return -1;
}

// A number that only this call has: nobody can read it or write to it.
int reserve_number() { return ::open("/", O_PATH | O_CLOEXEC); }

// Puts an event queue's file in the number's place; false with errno.
bool fill_number(int number) {
  UnownedDescriptors unowned;
  const int queue = ::eventfd(0, EFD_CLOEXEC);
  if (queue < 0) return false;
  const bool filled = ::dup3(queue, number, O_CLOEXEC) >= 0;
  const int error = errno;
  ::close(queue);
  errno = error;
  return filled;
}

}  // namespace

int open_device_file() {
  std::lock_guard one_at_a_time(manager().opening);
  set_companion(&kCompanion);
  // First of all the number, as the kernel would give it: a thread that still asks for events by one that was closed
  // finds it closed or finds the new channel, and never what the courier opens or an event queue's bare file.
  const int fd = reserve_number();
  if (fd < 0) return -1;
  const auto fail = [fd](int error) {
    ::close(fd);
    errno = error;
    return -1;
  };
  if (fd >= kMaxDescriptors) return fail(EMFILE);
  ManagerGuard guard;
  if (!courier_runs())
    if (Status status = start_courier(guard); !status.ok()) {
      log_line(LogLevel::kError, "rdma_cm: %s", status.text());
      return fail(status.error() != 0 ? status.error() : EIO);
    }
  g_is_ours[fd] = true;
  ++g_filled;
  if (!fill_number(fd)) {
    const int error = errno;
    g_is_ours[fd] = false;
    return fail(error);
  }
  auto channel = std::make_unique<Channel>();
  channel->fd = fd;
  channel->serial = ++manager().last_serial;
  manager().channels.push_back(std::move(channel));
  return fd;
}

bool is_device_file(int fd) { return fd >= 0 && fd < kMaxDescriptors && g_is_ours[fd].load(); }

ssize_t write_any_file(int fd, const void* data, std::size_t bytes) {
  for (;;) {
    const std::uint32_t filled = g_filled;
    if (is_device_file(fd)) return run_command_at(fd, data, bytes);
    const ssize_t written = ::write(fd, data, bytes);
    if (written == static_cast<ssize_t>(bytes)) return written;
    // A number that was closed, and became a channel's since we looked: its file takes no command (before Linux 6.9
    // it takes eight bytes of one).
    if (written < 0 ? g_filled == filled : !is_device_file(fd)) return written;
  }
}

int close_device_file(int fd) {
  ManagerGuard guard;
  Channel* channel = find_channel(fd);
  if (channel != nullptr && !channel->foreign) {
    std::vector<std::uint32_t> numbers;
    for (auto& [number, id] : manager().ids)
      if (id->channel == channel) numbers.push_back(number);
    for (std::uint32_t number : numbers)
      if (ConnectionId* id = find_id(number); id != nullptr) destroy_id(*id);
  }
  // Takes a moment, in which who still waits here should be in time: a program that closes its channel and ends while
  // a thread of it asks for the next event (rping) is to end well.
  const auto in_use = [&](const auto& c) { return !c->foreign && c.get() != channel; };
  const auto stop_if_last = [&] {
    if (courier_runs() && std::none_of(manager().channels.begin(), manager().channels.end(), in_use))
      stop_courier(guard);
  };
  stop_if_last();
  // Who comes by the number from here on, before it is closed, finds nothing to write to.
  {
    UnownedDescriptors unowned;
    if (const int reserved = reserve_number(); reserved >= 0) {
      ::dup3(reserved, fd, O_CLOEXEC);
      ::close(reserved);
    }
  }
  g_is_ours[fd] = false;
  std::erase_if(manager().channels, [&](const auto& c) { return c.get() == channel; });
  const int rc = ::close(fd);
  stop_if_last();  // if something was asked of it meanwhile
  return rc;
}

void leave_connections() {
  Inside inside;
  if (!manager().lock.try_lock()) return;
  if (courier_runs())
    for (auto& [number, id] : manager().ids) end_connection(*id);
  manager().lock.unlock();
}

}  // namespace shadowib::cm
