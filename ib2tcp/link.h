// The connection to one other process (or to this one): frames in both directions over a Stream.
//
// A link exists from the first queue pair that names the peer, or from the peer's first authenticated connection, and
// lasts; streams under it come and go, and buffers with them. Nothing here grows with the number of queue pairs
// except two list hooks in each of them. Under the engine's lock.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hooks/federation/rule.h"
#include "ib2tcp/engine.h"
#include "ib2tcp/queue_pair.h"
#include "ib2tcp/rendezvous.h"
#include "ib2tcp/transport.h"
#include "ib2tcp/wire.h"

namespace shadowib::ib2tcp {

class Handshake;
struct BorderSide;

inline constexpr int kMaxParts = kMostSge + 2;

// A frame on its way out: header, and payload where it lies.
struct Frame {
  // Where the header is to be built: perhaps memory that the peer may change, so nothing is read from it.
  FrameHeader* header = nullptr;
  std::uint32_t bytes = 0;  // of payload
  iovec parts[kMaxParts];
  int count = 0;
  std::unique_ptr<char[]> copy;  // what parts[0] is, if the payload's memory may not be touched

  // Makes the parts a copy that the kernel reads. False: no memory, or some of it is gone.
  [[nodiscard]] bool copy_carefully(std::size_t bytes);
};

// Where the payload that is arriving goes.
struct Sink {
  FrameHeader header{};
  Qp* qp = nullptr;            // nullptr: the payload is discarded
  Receive* receive = nullptr;  // lent for this message
  bool active = false;
  bool discard = false;  // not straight to the parts; nowhere unless `careful`
  bool careful = false;  // by write_carefully
  std::uint32_t remaining = 0;
  iovec parts[kMaxParts];
  std::uint32_t regions[kMaxParts];  // the key that each part is reached by
  int count = 0, at = 0;

  // The rest of the payload goes nowhere.
  void abandon() {
    qp = nullptr;
    discard = true;
    careful = false;
  }
};

// Bytes that have arrived and were not looked at: in a buffer of ours, or in memory that the peer writes as well.
struct Input {
  const char* at;
  const char* end;
  std::size_t left() const { return static_cast<std::size_t>(end - at); }
};

class Link {
 public:
  enum class State { kDown, kConnecting, kConfirming, kUp, kFrozen };

  Link(const Endpoint& peer, bool self);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  const Endpoint& peer() const { return peer_; }
  State state() const { return state_; }
  bool up() const { return state_ == State::kUp; }
  bool is_connected() const { return stream_ != nullptr || state_ == State::kFrozen; }
  bool self() const { return self_; }

  void add(Qp& qp) { qps_.push_back(qp); }
  // The queue pair is being destroyed or reset: cuts it out of whatever is half done. The payload of a frame that
  // has been begun is copied, since its memory may be gone when it is written. cut() comes first.
  void forget(Qp& qp);
  // Same for memory that a key no longer stands for. Payload that is arriving there by another key goes on.
  void forget_memory(std::uint32_t key, const void* begin, std::size_t bytes);
  // The program is about to unmap or protect this memory: no copy of ours touches it any more.
  void memory_changes(const char* begin, std::size_t bytes);
  // Likewise without leaving the link: the queue pair goes to error. Returns the receive that was lent to a message
  // on its way in, or nullptr.
  [[nodiscard]] Receive* cut(Qp& qp);
  // Whether a message on its way in has a receive of the queue pair's.
  bool fills_receive_of(const Qp& qp) const { return sink_.active && sink_.qp == &qp && sink_.receive != nullptr; }
  // Whether a request on its way in is for the queue pair.
  bool takes_request_of(const Qp& qp) const {
    return sink_.active && sink_.qp == &qp && is_request(sink_.header.opcode);
  }
  // Memory of its log goes: what is half out of it is copied.
  void detach_log(const Qp& qp) { detach_output(qp); }
  // A frame that outlives its queue pair: a refusal, a last acknowledgement.
  void send_loose(const FrameHeader& header);

  // A connection is being made with a peer that has answered, or that somebody listens for: it may be waiting for a
  // processor. That ends by itself, one way or the other, and is no sign of a peer that is gone.
  bool being_made() const;
  // Nobody has answered there for as long as a handshake may take. Next time that counts.
  void note_silence() { silent_ = true; }
  // The attempt that now fails: nobody listens there, or somebody does.
  void note_absence(bool absent) { absent_ = absent && !is_put_off_; }
  // The attempt that now fails tells nothing of the peer: its queue is full, or descriptors are short here. While
  // that lasts it counts no more than a handshake that nobody answers.
  void note_put_off();
  // The attempt that now fails was answered by "later", for as long as the peer's exchange fails. Counts nothing.
  void note_later() { is_told_later_ = true; }
  // Connects if there is no connection and none is being made.
  void want_connection();
  // A handshake ended. `stream` is taken. The side that accepted is up only when the peer's first frame is there.
  void on_connected(Stream* stream, bool accepted);
  void on_connect_failed(const char* reason);
  // Whether an authenticated connection from the peer may become this link's (the tie-break).
  bool accepts_incoming() const;
  void abandon_attempt();

  void ready(Qp& qp) {
    if (!qp.ready_hook.is_linked()) ready_.push_back(qp);
  }
  void owe_ack(Qp& qp) {
    if (qp.ack_hook.is_linked()) return;
    if (qp.is_target())
      owing_.push_front(qp);
    else
      owing_.push_back(qp);
  }
  bool owes_acks() const { return !owing_.empty() || !done_.empty(); }
  bool unsent() const { return tx_begin_ != tx_end_ || body_count_ != 0 || !ready_.empty() || !loose_.empty(); }

  // Reads and executes what has arrived (if `read`), then sends what is ready. True if anything moved.
  bool turn(bool read);
  // Sends what is ready. True if anything moved.
  bool pump();
  void send_owed_acks();

  // --- border_link.cc: of a link to another cluster (border.h) ---
  bool is_border() const { return border_ != nullptr; }
  unsigned cluster() const;  // the peer's, at a border
  // The message that waits for a CLC, or nullptr.
  const federation::Stamp* held_stamp() const;
  // From freeze() to thaw() nothing is read or written, and nothing connects. The rest of a frame half written is
  // copied.
  void freeze();
  void thaw();
  // The state of the clusters has changed (set_cluster).
  void on_new_state();
  // The peer's cluster went back, and this process of it is gone.
  bool is_over() const;
  // Goes on with the process that has the peer's address now, if its cluster has come back. Else it looks again
  // later.
  void look_for_successor();
  // From now on the peer is that process. The old one's connection has ended.
  void follow(const Endpoint& successor);
  // Puts a queue pair in front of the others that have something to send.
  void ready_first(Qp& qp);
  // True if the next frame must say what messages of that number depend on.
  bool begin_telling(federation::Sn sn);

  // Ends the connection if the peer's host has been silent for that long.
  void end_if_lost(std::uint32_t patience_ms);

  Stream* stream() { return stream_.get(); }
  bool is_memory_readable() const { return traits_.memory_readable; }
  // Sleep preparation of the helper; see Stream.
  bool prepare_sleep();
  void wake_up();
  std::size_t first_address = 0;  // the one to try first
  bool readable = true;           // epoll said so, or not known; only for streams that cannot tell by memory

 private:
  // Input.
  bool receive();
  ssize_t read_some(std::size_t* wanted);
  enum class Parsed : std::uint8_t { kMore, kEnded, kHeld };
  Parsed parse(Input* in, int* frames);
  bool begin_frame(const FrameHeader& header, const Input& in);
  bool begin_judged_frame(FrameHeader header, const Input& in);
  bool begin_admitted_frame(const FrameHeader& header, const Input& in);
  void finish_frame();
  void feed_sink(Input* in);
  void feed_sink_carefully(const char* from, std::size_t bytes);
  void refuse(const FrameHeader& header, std::uint32_t why = 0);  // `why`: kGoneForGood, of a RESUME
  void note_done(const FrameHeader& header);
  void keep_datagram(const Input& in);
  void flush_done();
  // Output.
  bool flush();
  bool gather();
  void acknowledge_first();
  char* room();
  void begin_at(char* to, Frame* frame);
  bool append(Frame& frame);
  void detach_output(const Qp& qp);
  void snapshot_body();
  bool copy_body(bool careful);
  void drop_body();
  // Border.
  enum class Admission : std::uint8_t { kFollow, kTaken, kEnds };  // kEnds: the connection, or what is read of it
  void become_border();
  Admission admit(FrameHeader& header);
  Admission judge(const FrameHeader& header, federation::Sn sn);
  void note_delivery(const FrameHeader& header);
  void trace(BorderEvent::Kind kind, const FrameHeader& header) const;
  Admission resume_queue(const FrameHeader& header);
  Admission trim_log(const FrameHeader& header);
  Admission begin_vector(const FrameHeader& header);
  void hold(const federation::Stamp& stamp);
  void release_if_admitted();
  void parse_buffer();
  void prepare_loose();
  bool is_wanted() const;
  void kick_queues();
  void watch_held_writes(bool writing);
  void watch_stream();
  void wake_queues();
  void shut();
  bool is_held() const { return held_stamp() != nullptr; }
  bool is_frozen() const;
  bool is_kept_from_connecting() const;
  // Life.
  void tell_up();
  void down(const char* reason);
  void frame_error(const char* what, const FrameHeader& header);
  void stream_events(std::uint32_t events);

  Endpoint peer_;
  bool self_;
  bool judged_ = false;  // what comes in: up at a border, or not yet up
  State state_ = State::kDown;
  std::unique_ptr<Stream> stream_;
  StreamTraits traits_{};  // the stream's
  Watch data_watch_, end_watch_;
  bool watching_writes_ = false;
  Handshake* attempt_ = nullptr;
  Timer retry_;
  std::int64_t backoff_ns_ = 0;
  bool silent_ = false, absent_ = false;
  std::int64_t put_off_since_ns_ = 0;                // the first of such attempts in a row; 0: the last was another
  bool is_put_off_ = false;                          // the attempt that now fails
  bool told_later_ = false, is_told_later_ = false;  // the last attempt; the one that now fails

  HookedList<Qp, &Qp::of_link> qps_;
  HookedList<Qp, &Qp::ready_hook> ready_;
  HookedList<Qp, &Qp::ack_hook> owing_;  // XRC targets first

  static constexpr std::size_t kInput = 16 << 10, kOutput = (64 << 10) - 64;
  std::unique_ptr<char[]> rx_;  // with a connection only, as tx_
  std::size_t rx_begin_ = 0, rx_end_ = 0;
  Sink sink_;
  bool large_frames_ = false;
  // The payload of one that is coming in: kept in datagram_, or where it arrived if all of it is there.
  std::unique_ptr<char[]> datagram_;
  const char* payload_ = nullptr;

  std::unique_ptr<char[]> tx_;
  std::size_t tx_begin_ = 0, tx_end_ = 0;
  bool is_placing_ = false;  // room() was the stream's own
  char* begun_ = nullptr;    // the room of the frame in hand
  // Payload of the last frame in tx_, written from where it lies.
  iovec body_[kMaxParts];
  int body_at_ = 0, body_count_ = 0;
  const Qp* body_qp_ = nullptr;
  std::unique_ptr<char[]> body_copy_;
  Frame frame_;
  FrameHeader apart_;  // of a frame that lies where no header may be built
  // Datagrams that came and whose sender has not been told; 0 or one frame per sender.
  std::vector<FrameHeader> done_;
  std::uint32_t done_count_ = 0;
  static constexpr std::size_t kMaxLoose = 1 << 16;
  // Frames without a queue pair; see send_loose.
  std::vector<FrameHeader> loose_;
  std::unique_ptr<BorderSide> border_;  // nullptr: within the cluster
};

}  // namespace shadowib::ib2tcp
