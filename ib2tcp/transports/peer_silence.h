// Whether the host at the other end of a TCP connection is gone while data to it are under way.
//
// Keep-alive probes go over an idle connection only, and the kernel gives up data that nobody acknowledges after some
// 15 minutes. TCP_USER_TIMEOUT would end a peer that is stopped, too, since its window stays closed. But the kernel
// of a stopped process answers: so what counts is what got no answer, retransmissions and probes of a closed window.
#pragma once

#include <netinet/tcp.h>

#include <algorithm>
#include <cstdint>

namespace shadowib::ib2tcp {

class PeerSilence {
 public:
  // Asked every now and then. True: the peer's host has said nothing for that long, in spite of kUnanswered tries
  // since its last word. An asker that was itself stopped for long judges from then on only.
  bool is_lasting(const tcp_info& info, std::int64_t now_ms, std::uint32_t patience_ms) {
    const std::int64_t unwatched_ms = now_ms - asked_ms_ + kGrainMs;
    asked_ms_ = now_ms;
    const std::uint32_t silent_ms = std::min(info.tcpi_last_ack_recv, info.tcpi_last_data_recv);
    if (silent_ms < unwatched_ms) {  // it has answered all until then
      answered_ = info.tcpi_retransmits;
      return false;
    }
    return silent_ms >= patience_ms && info.tcpi_retransmits - answered_ + info.tcpi_probes >= kUnanswered;
  }

 private:
  static constexpr int kUnanswered = 2;
  static constexpr std::int64_t kGrainMs = 100;  // the kernel's clock ticks every few milliseconds

  std::int64_t asked_ms_ = 0;
  // Retransmissions before its last word. The kernel counts on while a peer answers that its window is closed.
  int answered_ = 0;
};

}  // namespace shadowib::ib2tcp
