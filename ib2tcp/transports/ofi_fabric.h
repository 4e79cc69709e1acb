// One process's end of a libfabric provider: what all its streams over it share.
//
// With MSG endpoints every stream has a connection of its own, accepted by a passive endpoint; with RDM endpoints all
// share one endpoint and tell each other apart by what each message begins with. In both, messages are copied through
// buffers of ours: a provider's completion says nothing of the other side, and memory may be reused at once.
//
// Peers find the provider and the address in each other's Endpoint record, and prove the job's key over the socket of
// the handshake, which stays open to tell a peer's end: providers go on taking messages for a peer that is gone.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ib2tcp/transport.h"

namespace shadowib::ib2tcp {

struct OfiLibrary;
class OfiFabric;
class OfiStream;

inline constexpr std::size_t kOfiMessageBytes = 64 << 10;

// In front of each message.
struct OfiHeader {
  std::uint32_t slot;      // the receiver's
  std::uint32_t sequence;  // of the stream's messages, from 0
  std::uint64_t secret;    // the receiver's
};
static_assert(sizeof(OfiHeader) == 16);

// Buffers that were mapped, and registered where the provider wants that, together.
struct OfiBuffers;
struct OfiBuffer {
  fi_context2 context;  // first: what completions name
  OfiBuffers* of = nullptr;
  OfiStream* stream = nullptr;  // of MSG, and of what is being sent
  OfiBuffer* next = nullptr;
  char* data = nullptr;
  std::uint32_t begin = 0, end = 0;  // what has come and was not read
  bool sending = false;

  OfiHeader* header() { return reinterpret_cast<OfiHeader*>(data); }
};

struct OfiBuffers {
  // nullptr with errno.
  static OfiBuffers* make(OfiFabric& fabric, int count);
  // They go when the provider has none of them any more.
  void abandon();
  void take_back();  // one of them

  void* memory = nullptr;
  std::size_t bytes = 0;
  fid_mr* registration = nullptr;
  std::vector<OfiBuffer> all;
  int at_provider = 0;
  bool abandoned = false;

 private:
  void free();
};

class OfiFabric final : public Fabric {
 public:
  // nullptr after a message. Under the engine's lock, as everything here.
  static std::unique_ptr<OfiFabric> open(const OfiLibrary& library, Driver& driver);
  ~OfiFabric() override;

  bool has_connections() const override { return connected(); }
  bool connected() const { return info_->ep_attr->type == FI_EP_MSG; }
  const char* provider() const override { return info_->fabric_attr->prov_name; }
  const std::uint8_t* name() const override { return name_; }
  std::size_t name_bytes() const override { return name_bytes_; }
  FabricStream* make_stream(const FabricPeer& peer) override;

  bool poll() override;
  bool prepare_sleep() override;

 private:
  friend class OfiStream;
  friend struct OfiBuffers;

  OfiFabric(const OfiLibrary& library, Driver& driver);
  bool start();
  bool check(int rc, const char* what);
  void watch(fid* object, Watch& watch);
  bool read_events();
  void on_connection_request(const fi_eq_cm_entry& entry, const void* data, std::size_t bytes);
  bool read_completions();
  void on_completion_error();
  void on_message(OfiBuffer& buffer, std::size_t bytes);
  void receive(OfiBuffer& buffer);  // hands it to the provider; keeps it for later if that has no room

  void enter(std::uint32_t slot, OfiStream* stream);
  void leave(std::uint32_t slot, const OfiStream* stream);

  const OfiLibrary& library_;
  Driver& driver_;
  const fi_info* info_;
  fid_fabric* fabric_ = nullptr;
  fid_domain* domain_ = nullptr;
  fid_cq* completions_ = nullptr;
  fid_eq* events_ = nullptr;        // MSG
  fid_pep* listener_ = nullptr;     // MSG
  fid_ep* endpoint_ = nullptr;      // RDM
  fid_av* addresses_ = nullptr;     // RDM
  OfiBuffers* receives_ = nullptr;  // RDM
  OfiBuffer* unposted_ = nullptr;   // RDM
  Watch completions_watch_, events_watch_;
  Timer blind_;  // where nothing tells a sleeper
  std::uint8_t name_[kMaxFabricName] = {};
  std::size_t name_bytes_ = 0;
  std::vector<OfiStream*> streams_;  // by slot
  std::vector<OfiStream*> ending_;   // whose connection has ended: when all that came is read from the queue
  int opening_ = 0;
  std::uint32_t polls_ = 0;
};

}  // namespace shadowib::ib2tcp
