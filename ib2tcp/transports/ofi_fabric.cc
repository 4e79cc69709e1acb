#include "ib2tcp/transports/ofi_fabric.h"

#include <errno.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cstring>

#include "ib2tcp/host.h"
#include "ib2tcp/transports/ofi_library.h"
#include "ib2tcp/transports/ofi_stream.h"
#include "shadowib/base/lock.h"

namespace shadowib::ib2tcp {
namespace {

constexpr int kSharedReceives = 64;  // of an RDM endpoint, for all its peers
constexpr std::size_t kCompletions = 1024;
constexpr int kCompletionsPerPoll = 64;
constexpr std::int64_t kBlindNs = 1'000'000;
constexpr std::uint32_t kPollsPerEvents = 64;

}  // namespace

OfiBuffers* OfiBuffers::make(OfiFabric& fabric, int count) {
  auto* buffers = new OfiBuffers;
  buffers->bytes = static_cast<std::size_t>(count) * kOfiMessageBytes;
  buffers->memory = g_host->map(buffers->bytes);
  if (buffers->memory == nullptr) {
    delete buffers;
    errno = ENOMEM;
    return nullptr;
  }
  if ((fabric.info_->domain_attr->mr_mode & FI_MR_LOCAL) != 0 &&
      !fabric.check(::fi_mr_reg(fabric.domain_, buffers->memory, buffers->bytes, FI_SEND | FI_RECV, 0, 0, 0,
                                &buffers->registration, nullptr),
                    "register buffers")) {
    buffers->free();
    errno = ENOMEM;
    return nullptr;
  }
  buffers->all.resize(static_cast<std::size_t>(count));
  auto* data = static_cast<char*>(buffers->memory);
  for (OfiBuffer& buffer : buffers->all) {
    buffer.of = buffers;
    buffer.data = data;
    data += kOfiMessageBytes;
  }
  return buffers;
}

void OfiBuffers::abandon() {
  abandoned = true;
  for (OfiBuffer& buffer : all) buffer.stream = nullptr;
  if (at_provider == 0) free();
}

void OfiBuffers::take_back() {
  if (--at_provider == 0 && abandoned) free();
}

void OfiBuffers::free() {
  if (registration != nullptr) ::fi_close(&registration->fid);
  g_host->unmap(memory, bytes);
  delete this;
}

std::unique_ptr<Fabric> open_ofi_fabric(Driver& driver) {
  const OfiLibrary* library = ofi_library();
  if (library == nullptr) {
    log_message(LogLevel::kError, "libfabric was not loaded when this library was");
    errno = EINVAL;
    return nullptr;
  }
  std::unique_ptr<Fabric> fabric = OfiFabric::open(*library, driver);
  if (fabric == nullptr) errno = EIO;
  return fabric;
}

std::unique_ptr<OfiFabric> OfiFabric::open(const OfiLibrary& library, Driver& driver) {
  std::unique_ptr<OfiFabric> fabric(new OfiFabric(library, driver));
  if (!fabric->start()) return nullptr;
  return fabric;
}

OfiFabric::OfiFabric(const OfiLibrary& library, Driver& driver)
    : library_(library), driver_(driver), info_(library.info) {
  blind_.fire = [](void*) {};
}

// Of one that did not start.
OfiFabric::~OfiFabric() {
  for (Watch* watch : {&completions_watch_, &events_watch_}) driver_.unwatch(*watch);
  auto close = [](auto* object) {
    if (object != nullptr) ::fi_close(&object->fid);
  };
  close(listener_);
  close(endpoint_);
  if (receives_ != nullptr) receives_->abandon();
  close(addresses_);
  close(events_);
  close(completions_);
  close(domain_);
  close(fabric_);
}

bool OfiFabric::check(int rc, const char* what) {
  if (rc == 0) return true;
  log_message(LogLevel::kError, "libfabric's provider %s cannot %s: %s", provider(), what, library_.strerror(-rc));
  return false;
}

bool OfiFabric::start() {
  set_up_thread();
  if (!check(library_.fabric(info_->fabric_attr, &fabric_, nullptr), "open its fabric") ||
      !check(::fi_domain(fabric_, const_cast<fi_info*>(info_), &domain_, nullptr), "open its domain"))
    return false;
  fi_cq_attr queue{};
  queue.size = kCompletions;
  queue.format = FI_CQ_FORMAT_MSG;
  queue.wait_obj = FI_WAIT_FD;
  if (::fi_cq_open(domain_, &queue, &completions_, nullptr) != 0) {
    queue.wait_obj = FI_WAIT_NONE;
    if (!check(::fi_cq_open(domain_, &queue, &completions_, nullptr), "make a completion queue")) return false;
  }
  watch(&completions_->fid, completions_watch_);
  name_bytes_ = sizeof(name_);
  if (connected()) {
    fi_eq_attr queue_of_events{};
    queue_of_events.wait_obj = FI_WAIT_FD;
    if (!check(::fi_eq_open(fabric_, &queue_of_events, &events_, nullptr), "make an event queue") ||
        !check(::fi_passive_ep(fabric_, const_cast<fi_info*>(info_), &listener_, nullptr), "make a listener") ||
        !check(::fi_pep_bind(listener_, &events_->fid, 0), "bind its listener") ||
        !check(::fi_listen(listener_), "listen") ||
        !check(::fi_getname(&listener_->fid, name_, &name_bytes_), "say where it listens"))
      return false;
    watch(&events_->fid, events_watch_);
    return true;
  }
  fi_av_attr table{};
  table.type = FI_AV_UNSPEC;
  if (!check(::fi_av_open(domain_, &table, &addresses_, nullptr), "make an address vector") ||
      !check(::fi_endpoint(domain_, const_cast<fi_info*>(info_), &endpoint_, nullptr), "make an endpoint") ||
      !check(::fi_ep_bind(endpoint_, &addresses_->fid, 0), "bind its addresses") ||
      !check(::fi_ep_bind(endpoint_, &completions_->fid, FI_SEND | FI_RECV), "bind its completions") ||
      !check(::fi_enable(endpoint_), "enable its endpoint") ||
      !check(::fi_getname(&endpoint_->fid, name_, &name_bytes_), "say its address"))
    return false;
  receives_ = OfiBuffers::make(*this, kSharedReceives);
  if (receives_ == nullptr) return false;
  for (OfiBuffer& buffer : receives_->all) receive(buffer);
  return true;
}

void OfiFabric::watch(fid* object, Watch& watch) {
  int fd = -1;
  if (::fi_control(object, FI_GETWAIT, &fd) != 0 || fd < 0) return;
  watch = {[](void*, std::uint32_t) {}, this};  // poll() looks at all of them
  driver_.watch(watch, fd, EPOLLIN, false);
}

bool OfiFabric::poll() {
  set_up_thread();
  bool moved = false;
  while (unposted_ != nullptr) {
    OfiBuffer* buffer = unposted_;
    unposted_ = buffer->next;
    receive(*buffer);
    if (unposted_ == buffer) break;
  }
  if (events_ != nullptr && (opening_ > 0 || (++polls_ % kPollsPerEvents) == 0)) moved |= read_events();
  moved |= read_completions();
  return moved;
}

bool OfiFabric::prepare_sleep() {
  set_up_thread();
  if (events_ != nullptr && read_events()) return false;
  if (completions_watch_.fd < 0) {
    driver_.arm(blind_, monotonic_ns() + kBlindNs);
    return true;
  }
  fid* objects[2] = {&completions_->fid, events_ != nullptr ? &events_->fid : nullptr};
  return ::fi_trywait(fabric_, objects, events_ != nullptr ? 2 : 1) == FI_SUCCESS;
}

bool OfiFabric::read_events() {
  alignas(fi_eq_cm_entry) char event[sizeof(fi_eq_cm_entry) + 256];  // more than the peer's OfiHeader: providers pad
  auto& entry = *reinterpret_cast<fi_eq_cm_entry*>(event);
  bool any = false;
  for (;;) {
    std::uint32_t kind = 0;
    ssize_t n = ::fi_eq_read(events_, &kind, event, sizeof(event), 0);
    fid* object = n > 0 ? entry.fid : nullptr;
    if (n == -FI_EAVAIL) {
      fi_eq_err_entry error{};
      if (::fi_eq_readerr(events_, &error, 0) < 0) return any;
      object = error.fid;
      kind = FI_SHUTDOWN;
    } else if (n <= 0) {
      return any;
    }
    any = true;
    if (kind == FI_CONNREQ && static_cast<std::size_t>(n) >= sizeof(entry)) {
      on_connection_request(entry, event + sizeof(entry), static_cast<std::size_t>(n) - sizeof(entry));
      continue;
    }
    // An event may be older than the end of what it is about.
    for (OfiStream* stream : streams_) {
      if (stream == nullptr || stream->endpoint_ == nullptr || &stream->endpoint_->fid != object) continue;
      if (kind == FI_CONNECTED)
        stream->opened();
      else
        ending_.push_back(stream);
      break;
    }
  }
}

void OfiFabric::on_connection_request(const fi_eq_cm_entry& entry, const void* data, std::size_t bytes) {
  OfiHeader wanted{};
  if (bytes >= sizeof(wanted)) std::memcpy(&wanted, data, sizeof(wanted));
  OfiStream* stream = wanted.slot < streams_.size() ? streams_[wanted.slot] : nullptr;
  if (stream == nullptr || stream->own_.secret != wanted.secret || stream->endpoint_ != nullptr ||
      !stream->accept(entry.info)) {
    log_message(LogLevel::kInfo, "refused a connection by %s: it names no stream that waits for one", provider());
    driver_.count_refused(Driver::Refused::kConnection);
    ::fi_reject(listener_, entry.info->handle, nullptr, 0);
  }
  library_.freeinfo(entry.info);
}

bool OfiFabric::read_completions() {
  bool any = false;
  fi_cq_msg_entry entries[16];
  for (int count = 0; count < kCompletionsPerPoll;) {
    const ssize_t n = ::fi_cq_read(completions_, entries, std::size(entries));
    if (n == -FI_EAVAIL) {
      on_completion_error();
      any = true;
      ++count;
      continue;
    }
    if (n <= 0) {  // everything has been read, and with it what came before an end
      while (!ending_.empty()) {
        OfiStream* stream = ending_.back();
        ending_.pop_back();
        stream->end();
      }
      return any;
    }
    any = true;
    for (ssize_t i = 0; i < n; ++i) {
      auto& buffer = *static_cast<OfiBuffer*>(entries[i].op_context);
      if (buffer.sending)
        buffer.stream != nullptr ? buffer.stream->on_sent(buffer) : buffer.of->take_back();
      else
        on_message(buffer, entries[i].len);
    }
    count += static_cast<int>(n);
  }
  return any;
}

void OfiFabric::on_completion_error() {
  fi_cq_err_entry error{};
  if (::fi_cq_readerr(completions_, &error, 0) <= 0 || error.op_context == nullptr) return;
  auto& buffer = *static_cast<OfiBuffer*>(error.op_context);
  OfiStream* stream = buffer.stream;
  if (buffer.of == receives_) {  // RDM: of no peer in particular
    buffer.of->take_back();
    receive(buffer);
    return;
  }
  if (stream == nullptr) {
    buffer.of->take_back();
    return;
  }
  if (error.err != FI_ECANCELED)
    log_message(LogLevel::kInfo, "%s: a %s failed: %s", provider(), buffer.sending ? "message" : "receive",
                library_.strerror(error.err));
  if (buffer.sending)
    stream->on_sent(buffer);
  else
    buffer.of->take_back();
  if (error.err != FI_ECANCELED) stream->end();
}

void OfiFabric::on_message(OfiBuffer& buffer, std::size_t bytes) {
  OfiStream* owner = buffer.stream;  // MSG
  const bool left = connected() && owner == nullptr;
  buffer.of->take_back();
  if (left) return;
  const OfiHeader* header = buffer.header();
  OfiStream* stream = bytes > sizeof(OfiHeader) && header->slot < streams_.size() ? streams_[header->slot] : nullptr;
  if (stream != nullptr && (header->secret != stream->own_.secret || (owner != nullptr && owner != stream)))
    stream = nullptr;
  if (stream == nullptr || stream->ended_) {
    driver_.count_refused(Driver::Refused::kFrame);
    if (owner != nullptr) owner->end();
    receive(buffer);
    return;
  }
  buffer.begin = sizeof(OfiHeader);
  buffer.end = static_cast<std::uint32_t>(bytes);
  stream->on_message(buffer);
}

void OfiFabric::receive(OfiBuffer& buffer) {
  buffer.sending = false;
  OfiStream* stream = buffer.stream;
  fid_ep* endpoint = stream != nullptr ? stream->endpoint_ : endpoint_;
  void* description = buffer.of->registration != nullptr ? ::fi_mr_desc(buffer.of->registration) : nullptr;
  const ssize_t rc = ::fi_recv(endpoint, buffer.data, kOfiMessageBytes, description, FI_ADDR_UNSPEC, &buffer.context);
  if (rc == 0) {
    ++buffer.of->at_provider;
  } else if (stream != nullptr) {
    stream->end();
  } else {
    buffer.next = unposted_;
    unposted_ = &buffer;
  }
}

void OfiFabric::enter(std::uint32_t slot, OfiStream* stream) {
  if (streams_.size() <= slot) streams_.resize(slot + 1);
  streams_[slot] = stream;
}

void OfiFabric::leave(std::uint32_t slot, const OfiStream* stream) {
  if (streams_[slot] == stream) streams_[slot] = nullptr;
  std::erase(ending_, stream);
}

}  // namespace shadowib::ib2tcp
