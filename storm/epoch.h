// The objects of an end of a connection in one epoch, destroyed in the reverse order of their making.
#pragma once

#include <cstdlib>

#include "storm/endpoint.h"
#include "storm/objects.h"
#include "storm/receiver.h"

namespace storm {

struct Endpoint::Epoch final : CompletionSink {
  Epoch(Commons& commons, const Connection& connection, int side, std::uint32_t number, SharedAdditions& additions,
        Control& control);
  ~Epoch();
  void completed(const ibv_wc& wc) override;
  Address address() const;
  void connect(const Address& peer);
  void to_error();
  bool poll_own();

  Commons& commons;
  Wiring wiring;
  Dice dice;
  std::unique_ptr<std::uint8_t, void (*)(void*)> memory{nullptr, std::free};
  Region regions[2];
  std::unique_ptr<CompletionQueue> own_queues[2];
  CompletionQueue *send_queue = nullptr, *receive_queue = nullptr;
  XrcDomain domain;
  SharedQueue extended_queues[2];
  QueuePair sending, target;
  Window window;  // goes before the queue pair that it is bound by: Soft-RoCE waits for that for 50 seconds
  std::vector<std::unique_ptr<Receives>> receives;
  std::unique_ptr<Sender> sender;
  std::unique_ptr<Receiver> receiver;
  std::uint64_t completions = 0;

 private:
  void make_memory();
  void choose_queues();
  CompletionQueue* choose_queue(int which, std::uint32_t entries);
  void make_extended();
  void make_queue_pair();
  ibv_qp* create(ibv_qp_type type);
  void make_receives();
  void to_init(ibv_qp* qp) const;
  void to_ready_to_receive(ibv_qp* qp, std::uint32_t peer) const;
  void to_ready_to_send(ibv_qp* qp) const;
};

}  // namespace storm
