// A queue pair: both halves of the protocol and the state that ties them. Reliable (RC) and unreliable (UC) connected
// ones differ in what becomes of a message that cannot be executed; datagrams (UD) have a file of their own. Extended
// reliable connections (XRC) have one half at each end: the initiator sends, the target executes.
//
// Everything is under the engine's lock. The work is split over files: queue_pair.cc (creation, destruction, errors),
// qp_state.cc (modify, query), post.cc (posting), requester.cc (sending, acknowledgements), responder.cc (executing),
// datagram.cc (UD), xrc.cc (XRC).
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "hooks/federation/rule.h"
#include "ib2tcp/completion.h"
#include "ib2tcp/device.h"
#include "ib2tcp/engine.h"
#include "ib2tcp/receive_queue.h"
#include "ib2tcp/resume.h"
#include "ib2tcp/send_queue.h"
#include "ib2tcp/wire.h"

namespace shadowib::ib2tcp {

class Gate;
struct Ah;
struct Frame;
struct Sink;
struct Srq;
struct Xrcd;

class Qp {
 public:
  ibv_qp verbs{};  // first

  Hook of_link;                         // all queue pairs of a link
  Hook ready_hook;                      // those with something to send
  Hook ack_hook;                        // those that owe an acknowledgement
  Hook starved_hook;                    // of a shared receive queue: those whose peer was told "receiver not ready"
  std::uint32_t unread_events = 0;      // a bit for each type; under Context::events_lock
  int windows = 0;                      // of type 2, bound through it
  std::vector<Attachment> attachments;  // to multicast groups

  ibv_qp_type type() const { return verbs.qp_type; }
  bool reliable() const { return type() != IBV_QPT_UC && type() != IBV_QPT_UD; }
  bool has_peer() const { return type() != IBV_QPT_UD; }
  bool is_initiator() const { return type() == IBV_QPT_XRC_SEND; }
  bool is_target() const { return type() == IBV_QPT_XRC_RECV; }
  bool takes_shared() const { return srq_ != nullptr || is_target(); }
  // Whether a request is of the kind of this connection.
  // A number of another cluster's (FrameHeader::sn) has been looked at and taken out before.
  bool executes(const FrameHeader& header) const { return (header.dgid_end != 0) == is_target() && !is_initiator(); }
  Context& context() const { return *reinterpret_cast<Context*>(verbs.context); }
  ibv_qp_state state() const { return verbs.state; }
  bool connected() const { return state() == IBV_QPS_RTR || state() == IBV_QPS_RTS || state() == IBV_QPS_SQD; }
  Link* link() const { return link_; }
  std::uint32_t peer_qpn() const { return attr_.dest_qp_num; }
  bool is_peer(const Link& link, std::uint32_t peer_qpn) const {
    return has_peer() && link_ == &link && attr_.dest_qp_num == peer_qpn;
  }

  // --- queue_pair.cc ---
  Qp();
  ~Qp();
  // Made by a protection domain or, for a target, by an XRC domain; the other is nullptr.
  static int create(ibv_pd* pd, Xrcd* xrcd, ibv_qp_init_attr* init, Qp** out);
  int destroy();
  // A UD queue pair that sends, and datagrams nobody has answered for.
  bool has_datagrams_left() const {
    return verbs.qp_type == IBV_QPT_UD && verbs.state == IBV_QPS_RTS && !sq_.empty();
  }
  // To ERR: the oldest request completes with `first` if that is an error, everything else is flushed. Answers
  // already promised to the peer are still sent if `keep_answers`.
  void enter_error(ibv_wc_status first, bool keep_answers);
  void raise(ibv_event_type type);
  void flush_posted();  // in ERR: completes what was just posted; a shared receive queue is not ours to flush

  // --- qp_state.cc ---
  int modify(const ibv_qp_attr& attr, int mask);
  void query(ibv_qp_attr* attr, ibv_qp_init_attr* init) const;

  // --- post.cc ---
  int post_send(ibv_send_wr* wr, ibv_send_wr** bad);
  int post_recv(ibv_recv_wr* wr, ibv_recv_wr** bad);
  void tell_receive_posted();  // the peer, if it waits for one
  std::uint64_t executed() const { return executed_.load(); }

  // --- requester.cc ---
  // Fills the next frame to send, its header where frame->header says; false if there is nothing that may be sent
  // now.
  bool next_frame(Frame* frame);
  // False: next_frame() would have none.
  bool may_have_frames() const {
    return sq_.next != sq_.tail || answers_begin_ != answers_end_ || nak_ != Syndrome::kNone || tell_posted_ ||
           ack_now_ || !has_peer();
  }
  void on_ack(std::uint32_t ack);
  void on_nak(const FrameHeader& header);
  void on_receive_posted();
  void fail(ibv_wc_status status) { enter_error(status, false); }
  void begin_response(const FrameHeader& header, Sink* sink);
  void finish_response(Sink& sink);
  void on_link_up();
  void on_link_down();

  // --- border_queue.cc: of a queue pair whose peer is of another cluster (border.h) ---
  // What is posted from now on carries `now`, or what was posted since note_behind_clc().
  void on_new_sn(federation::Sn before, federation::Sn now);
  void note_behind_clc() { behind_clc_ = sq_.tail; }
  federation::Sn oldest_sn() const;  // of what is in the send queue
  void trace_posted();               // what has not left yet
  bool is_connected_to(const Link& link, std::uint32_t peer_qpn) const {
    return is_peer(link, peer_qpn) && connected();
  }
  // Looks at a frame that is not judged to wait, before others do.
  void before_border_frame(const FrameHeader& header);
  // A queue pair that has refused a request, and that the peer asks for on another connection. False: it has not.
  bool repeats_refusal(const Link& link, std::uint32_t peer_qpn);
  bool has_something_to_say() const;

  // --- resume.cc: of one whose peer, or itself, went back ---
  void on_resume(const FrameHeader& header);
  void keep_result();                                          // of the atomic that has just run
  bool trim_log(std::uint32_t expected, std::uint32_t first);  // true: something went
  void on_log_room();
  int save_border(BorderState* state, BorderResult* results, std::size_t capacity);
  int restore_border(const BorderState& state, const BorderResult* results);
  void end_restoring();
  void note_clc(federation::Sn sn);
  void tell_collected(federation::Sn sn);
  // The link is up and not frozen, and numbers may have changed.
  void on_border_open();
  // The peer's cluster went back: nobody knows yet what has to be sent again.
  void on_peer_gone();
  void on_cluster_judged(unsigned cluster, bool failed);
  void look_at_gate_again();
  // A bind of that key has been posted, and has not run.
  bool will_bind(std::uint32_t key);
  // Not all that the peer may need is in its log, which was full, or there is none.
  bool sends_unlogged_to(unsigned cluster) const;

  // --- requester.cc again ---
  void resolve();  // looks for the peer's process
  void kick();     // something may be sent: get on the link's list, or wait for a link

  // --- responder.cc ---
  void begin_request(const FrameHeader& header, Sink* sink);
  void finish_request(Sink& sink);
  // The sink's memory went away: what would have been written there is an error of the side that owns it.
  void fail_sink(Sink& sink);
  void give_up_sink(Sink& sink);  // the connection ended in the middle
  bool owes_ack() const { return ack_hook.is_linked(); }
  bool has_ack_to_send() const { return owes_ack() || ack_now_; }
  std::uint32_t expected() const { return expected_; }
  void want_ack_now() {
    ack_now_ = true;
    kick_answers();
  }

  // --- xrc.cc ---
  // The queue is being destroyed: what is on its way into it ends in an error.
  void forget_srq(const Srq& srq);

  // --- datagram.cc ---
  void take_datagram(const FrameHeader& header, const char* payload);  // a whole one
  void on_datagram_done(const Link& link, std::uint32_t seq);
  void on_datagram_link_up();
  void on_datagram_link_down(const Link& link);

 private:
  enum class Wait : std::uint8_t { kNone, kResolve, kExchange, kLink, kReceiver, kPeer, kResume };
  static constexpr std::uint32_t kAnswers = kMaxRdAtomic;

  // qp_state.cc
  int check_values(const ibv_qp_attr& attr, int mask) const;
  void apply(const ibv_qp_attr& attr, int mask);
  int enter_state(ibv_qp_state from, ibv_qp_state to);
  void reset();
  void maybe_drained();

  // post.cc
  int check_send(const ibv_send_wr& wr) const;
  bool queue_plain(const ibv_send_wr& wr);
  void queue_send(const ibv_send_wr& wr);
  void queue_local(Send& send, const ibv_send_wr& wr);

  // requester.cc
  bool next_request(Frame* frame);
  bool next_notice(Frame* frame);
  void run_local();
  // The number of a request on the wire. Those between `acked` and `sent` are of the wire all.
  std::uint32_t sequence(std::uint64_t index) const {
    return attr_.sq_psn + static_cast<std::uint32_t>(index) - local_ran_;
  }
  bool may_send_next() const;
  void fill_header(FrameHeader* header, Opcode opcode, std::uint32_t seq);
  void refused(const FrameHeader& header, bool counts);
  void lose_answer(const FrameHeader& header);
  std::int64_t rnr_delay_ns(const FrameHeader& header);
  void on_unreliable_nak(std::uint32_t seq);
  void lose_posted(std::uint64_t end);
  ibv_wc_status prepare_payload(Send& send, Frame* frame);
  ibv_wc_status prepare_payload_carefully(Send& send, Frame* frame);
  void complete_ready();
  void complete_send(Send& send, ibv_wc_status status);
  void go_back(Wait why, std::int64_t delay_ns);
  std::int64_t retry_interval_ns() const;
  void on_timer();
  void wait(Wait why, std::int64_t delay_ns);
  void stop_waiting();

  // border_queue.cc
  bool is_at_border() const;
  bool next_odd_frame(Frame* frame);
  bool next_border_frame(Frame* frame);
  bool next_border_datagram(Frame* frame);
  bool may_leave(federation::Sn sn) const;
  bool tell_first(federation::Sn sn, bool always, Frame* frame);
  federation::Sn sn_of(std::uint64_t index) const;
  federation::Sn answer_sn() const;
  std::uint64_t first_unanswered(std::uint64_t from);  // of any reliable connection
  void start_over();
  bool build_border_frame(Frame* frame);
  bool next_border_answer(Frame* frame);
  bool next_border_request(Frame* frame);
  void trace_posted_before(std::uint64_t end);
  void trace_post(Opcode opcode, federation::Sn sn, std::uint32_t number) const;
  void tell_refusal_again();
  bool on_border_nak(const FrameHeader& header);
  void ask_before_connection() const;
  const Gate& gate() const;
  bool passes_gate(std::uint64_t left, std::uint64_t completed);
  void tell_gate();
  void leave_gate();
  bool asks_whether_lost();
  void forget_peer();
  bool waits_for_bind(const FrameHeader& header) const;
  void note_read();  // by the peer
  void note_new_connection();

  // resume.cc
  bool state_is_sending() const { return state() == IBV_QPS_RTS || state() == IBV_QPS_SQD; }
  bool has_history() const;
  bool next_logged_request(Frame* frame, federation::Sn sn);
  BorderLogEntry* add_to_log(std::uint32_t number, std::uint32_t bytes);
  void drop_log(std::uint32_t first);
  void forget_log();
  void send_again(const BorderLogEntry& entry, Frame* frame);
  void recall_result(const FrameHeader& header);
  void begin_resuming();
  void on_resume_timer();
  void note_repeats(std::uint32_t end);
  void on_repeat(const FrameHeader& header);
  bool skip_to(std::uint32_t expects);
  std::uint64_t end_of_skipped();
  bool skip_on();
  bool go_back_to(std::uint32_t expects);
  bool next_replayed(Frame* frame);
  std::uint64_t first_to_replay() const;
  std::uint64_t left_at(std::uint64_t index);
  void note_executed(std::uint32_t end);
  void note_told(std::uint32_t end);
  void on_replay_ack(std::uint32_t ack);
  void ready_replay();
  void take_restored_numbers(ibv_qp_state to);
  bool next_stable(Frame* frame);

  // responder.cc
  bool next_answer(Frame* frame);
  bool begin_placement(const FrameHeader& header, Sink* sink);
  bool lend_receive(const FrameHeader& header, Sink* sink);
  void refuse_invalidation(const FrameHeader& header);
  bool puts_off(const FrameHeader& header);
  void begin_read(const FrameHeader& header, bool repeat);
  void begin_atomic(const FrameHeader& header);
  void answer_atomic(std::uint32_t seq, std::uint64_t value);
  bool answers_full() const { return answers_end_ - answers_begin_ >= kAnswers; }
  void duplicate(const FrameHeader& header);
  void executed_one(std::uint32_t bytes);
  void complete_receive(const FrameHeader& header, Receive* receive, ibv_wc_status status);
  void nak(Syndrome syndrome, std::uint32_t seq);
  void fail_request(Syndrome syndrome, std::uint32_t seq, ibv_event_type event);
  void drop_message();
  void receiver_ready();

  // xrc.cc
  Srq* named_srq(std::uint32_t number) const;
  bool choose_srq(std::uint32_t number);
  const ibv_pd* remote_pd(const FrameHeader& header) const;  // whose memory requests name

  // datagram.cc
  void address_datagram(Send& send, const ibv_send_wr& wr);
  void release_datagram(Send& send);
  void kick_datagrams();
  bool next_datagram(Frame* frame);
  void datagrams_done(const Link& link, std::uint64_t end);
  void advance_datagrams();
  void drop_next();
  bool may_send_datagram() const;
  Destination* next_destination();
  void address_frame(FrameHeader* header, const Ah& ah) const;
  void end_fan_out();
  void forget_copies(const Link& link, std::uint64_t end);
  void on_datagram_timer();
  void fail_datagram(const FrameHeader& header, Receive* receive, ibv_wc_status status);
  void complete_datagram(const FrameHeader& header, Receive* receive, ibv_wc_status status);

  // queue_pair.cc
  void forget_sends();
  void flush_receives();
  void count_uses(int step);
  void purge_completions();
  bool drop_sink();
  void drop_answers(bool is_cut);
  void kick_answers();
  void leave_link();
  // Room in the queue, zero but for wr_id and qp_num; nullptr if it is overrun. Cq::append() completes it.
  ibv_wc* begin_completion(Cq& cq, std::uint64_t wr_id);
  void check_overrun();

  Cq& send_cq() const { return *reinterpret_cast<Cq*>(verbs.send_cq); }
  ibv_pd* recv_pd() const;  // whose memory receives name
  Cq& recv_cq() const;      // of the receive in hand

  ibv_qp_attr attr_{};
  ibv_qp_cap cap_{};
  bool signal_all_ = false;
  bool odd_ = false;      // its frames are made elsewhere: datagrams, or to another cluster
  Link* link_ = nullptr;  // to the peer; UD: the one the next request is for
  Timer timer_;

  // Requester.
  SendQueue sq_;
  Tally<std::uint64_t> executed_;
  Wait wait_ = Wait::kNone;
  bool halted_ = false;  // a request that failed before it was sent is waiting for those before it
  std::uint32_t reads_out_ = 0;
  // UD: copies of multicast datagrams that their receivers have not answered for, and the member that the next
  // request goes to next.
  struct Copy {
    std::uint64_t index;
    const Link* link;
  };
  std::vector<Copy> copies_;
  std::size_t next_member_ = 0;
  std::uint64_t looked_for_ = ~std::uint64_t{0};  // the request for which members were looked for last
  std::uint32_t local_left_ = 0;                  // requests posted that need no peer and have not run
  std::uint32_t local_ran_ = 0;                   // since the connection began: they have no sequence numbers
  std::uint32_t rnr_left_ = 0;
  std::uint32_t tries_ = 0;
  std::uint32_t rnr_streak_ = 0;
  bool probing_ = false;  // refused: the oldest goes alone, until it is acknowledged or a receive was posted
  bool drain_event_ = false;
  bool overrun_ = false;  // a completion was lost

  // Responder.
  std::unique_ptr<ReceiveQueue> own_rq_;
  Srq* srq_ = nullptr;          // instead of own_rq_; of a target: that of the last request, if it is still there
  ReceiveQueue* rq_ = nullptr;  // either's
  Xrcd* xrcd_ = nullptr;        // of a target
  std::uint32_t expected_ = 0;  // sequence number
  std::uint32_t unacked_messages_ = 0;
  std::uint32_t unacked_bytes_ = 0;
  bool ack_now_ = false;
  bool rnr_ = false;          // the peer was told "receiver not ready" for expected_
  bool tell_posted_ = false;  // a receive came: tell the peer
  bool told_posted_ = false;
  bool established_ = false;
  Syndrome nak_ = Syndrome::kNone;
  std::uint32_t nak_seq_ = 0;
  bool nak_counts_ = true;         // false: it uses up no retry of the peer's
  FrameHeader answers_[kAnswers];  // to READs and atomics, in order
  std::uint32_t answers_begin_ = 0, answers_end_ = 0;
  // Results of the last atomics by sequence number, for repeats.
  struct Result {
    std::uint32_t seq;
    bool valid;
    std::uint64_t value;
  };
  Result results_[kMaxRdAtomic] = {};
  std::uint32_t next_result_ = 0;

  // Border.
  struct Mark {
    std::uint64_t from;  // requests from this one on were posted under ...
    federation::Sn sn;   // ... this number
  };
  std::vector<Mark> marks_;       // ascending; none: all under that of now
  std::uint64_t behind_clc_ = 0;  // the first request behind the CLC, if Border::is_behind_clc()
  federation::Sn nak_sn_ = 0;     // 0: that of now
  bool resume_ = false;           // the peer is to be told what is expected
  std::unique_ptr<Kept> kept_;    // of a reliable connection to another cluster
};

// Slots of BackendOps.
ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attr);
int modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask);
int query_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask, ibv_qp_init_attr* init);
int destroy_qp(ibv_qp* qp);
int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad);
int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad);
std::uint64_t sq_executed(ibv_qp* qp);

}  // namespace shadowib::ib2tcp
