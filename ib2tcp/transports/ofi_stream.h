// A byte stream in messages of a libfabric provider.
#pragma once

#include "ib2tcp/transport.h"
#include "ib2tcp/transports/ofi_fabric.h"

namespace shadowib::ib2tcp {

class OfiStream final : public FabricStream {
 public:
  OfiStream(OfiFabric& fabric, const FabricPeer& peer);
  ~OfiStream() override { close(); }

  const StreamTraits& traits() const override;
  ssize_t writev(const iovec* parts, int count) override;
  ssize_t readv(const iovec* parts, int count) override;
  bool readable() override { return first_ != nullptr || ended_; }
  int fd() const override { return -1; }  // the fabric's wakes for all
  bool prepare_sleep(bool writing) override;
  bool prepare_sleep_to_write() override;
  void wake_up() override {}
  void on_fd_ready() override {}
  void close() override;

  bool open() const override { return open_; }
  void when_open(void (*told)(void* owner), void* owner) override;

 private:
  friend class OfiFabric;

  bool start(const FabricPeer& peer);
  bool attach(fi_info* info);
  bool accept(fi_info* info);
  void opened();
  void end();
  void on_socket_ready();
  void on_message(OfiBuffer& buffer);
  void append(OfiBuffer& buffer);
  void on_sent(OfiBuffer& buffer);
  void give_back(OfiBuffer& buffer);
  int send(OfiBuffer& buffer, std::size_t bytes);

  // Messages that overtook others. A provider completes out of order only what it has buffers for.
  static constexpr std::uint32_t kWindow = 256;

  OfiFabric& fabric_;
  FabricEnd own_, peer_;
  int socket_ = -1;
  Watch socket_watch_;
  Timer grace_;
  fid_ep* endpoint_ = nullptr;  // MSG: its own; RDM: the fabric's
  fi_addr_t address_ = FI_ADDR_UNSPEC;
  OfiBuffers* sends_ = nullptr;
  OfiBuffers* receives_ = nullptr;  // MSG
  OfiBuffer* free_ = nullptr;
  OfiBuffer* first_ = nullptr;
  OfiBuffer* last_ = nullptr;
  std::vector<OfiBuffer*> early_;
  std::uint32_t sent_ = 0, expected_ = 0;
  bool open_ = false, ended_ = false, closed_ = false;
  bool full_ = false;  // until a message of ours is done with
  void (*told_)(void* owner) = nullptr;
  void* told_owner_ = nullptr;
};

}  // namespace shadowib::ib2tcp
