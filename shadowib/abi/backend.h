// The contract between the shim and what implements real verbs objects.
//
// A backend is a shared library, loaded by dlmopen into a link namespace of its own, with its own malloc, stdio
// and errno. It exports one C function, shadowib_backend_entry, and speaks rdma-core's own structs: every object it
// returns starts with the `struct ibv_*` of that kind (newest layout of the installed rdma-core). The shim never
// hands such a pointer to the program.
//
// Lifetime: entry is called once after loading. At a restart everything the old library owned is *abandoned*. Its
// mappings (owned, see HostServices) are not in the image, its descriptors are gone, and none of its functions is
// called again. It is dlclosed, so it has no destructor that touches its own memory. A fresh copy is loaded.
//
// Threads: every function may be called by any thread. The shim calls nothing of a backend after fork in the child.
// A backend starts no thread of its own if it provides progress(): the shim lends it one (the helper).
// Return values: as the verbs manual says (0 or a positive errno; pointers: nullptr with errno set. Errno is passed
// through HostServices::set_errno, since a namespace has an errno of its own; the table's wrappers do that).
#pragma once

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>

#include "shadowib/base/memory_watch.h"

namespace shadowib {

inline constexpr uint32_t kBackendAbiVersion = 16;

// LIDs that ib2tcp gives to guests of a job begin here, so that a member knows one by its address. A process is a
// guest if HostServices::config has SHADOWIB_GUEST.
inline constexpr uint16_t kFirstGuestLid = 0x8000;

// A federation of clusters, as a backend sees it (hooks/federation/rule.h). Clusters are named by index.
inline constexpr unsigned kMaxBackendClusters = 32;

struct ClusterState {
  uint32_t index;                              // of the cluster that this process belongs to
  uint32_t sn;                                 // number of its last CLC; 0: none yet
  uint32_t policy;                             // federation::Policy
  uint32_t reserved;                           // 0
  uint32_t depends[kMaxBackendClusters];       // D: the greatest SN of each cluster that may be delivered
  uint32_t incarnations[kMaxBackendClusters];  // frames of others are not delivered
};

// A message of another cluster that waits for a CLC of this one.
struct HeldStamp {
  uint32_t cluster;
  uint32_t incarnation;
  uint32_t sn;
  uint32_t vector[kMaxBackendClusters];  // the sender's D with its own SN; zeros unless the policy carries it
};

// Facts on each cluster that a process's border has gathered since the process began, or came back.
struct BorderFacts {
  uint32_t delivered[kMaxBackendClusters];  // D of this process: the greatest SN that was delivered; 0: none
  uint32_t trimmed[kMaxBackendClusters];    // the latest CLC of that cluster for which something was trimmed here
};

// A message of a traced job (docs/reference/formats.md). Every pointer is valid during the call only.
struct BorderEvent {
  enum Kind : uint32_t { kPost, kHold, kDeliver };
  Kind kind;
  uint32_t sn;             // of this process's cluster; of a post: when the message was posted
  uint32_t incarnation;    // of this process's cluster
  uint32_t peer;           // the other cluster
  uint64_t flow;           // a queue pair and direction; unique in the sender's cluster
  uint32_t number;         // ascends in a flow
  uint32_t entries;        // of `vector`
  const uint32_t* vector;  // of a post, where the policy carries it: the sender's D with its own SN; else nullptr
};

// A request that has left for another cluster. The log keeps it, with its bytes behind it, for a peer that goes back.
struct BorderLogEntry {
  uint32_t number;           // its sequence number on the connection
  uint32_t sn;               // of the sender's cluster when it was posted; not 0
  uint32_t bytes;            // of payload
  uint32_t reserved;         // 0
  unsigned char header[64];  // as the backend sent it: real numbers and keys
  uint64_t left;             // when it left the first time, in nanoseconds of CLOCK_MONOTONIC
  uint64_t completed;        // when a completion told the program that it has run (ib2tcp/gate.h); 0: it has not
  char* data() { return reinterpret_cast<char*>(this + 1); }
  const char* data() const { return reinterpret_cast<const char*>(this + 1); }
};

// All that other processes still send again to a cluster that went back (ib2tcp/gate.h).
inline constexpr uint64_t kGateNothing = ~uint64_t{0};
struct GateState {
  uint64_t earliest;    // completion of the first of it, CLOCK_MONOTONIC; kGateNothing; 0: not all of them have said
  uint64_t skew;        // by how many nanoseconds their clocks may differ from this one
  uint32_t goes_first;  // 1: before theirs, at the same time
  uint32_t reserved;    // 0
};

// The result of an atomic that was executed here, for a peer that goes back and asks again.
struct BorderResult {
  uint32_t number;    // of the request
  uint32_t reserved;  // 0
  uint64_t value;     // that was there before
};

// How far a connection to another cluster has come, in sequence numbers. Its requests and its peer's have numbers of
// their own.
struct BorderState {
  uint32_t
      first;  // of the oldest request that is not known executed: for READs and atomics, whose result is not here
  uint32_t expected;  // the peer's next one; all before it have run here
  uint32_t results;   // how many results of atomics are kept
  uint32_t unlogged;  // 1: not all that has left since the log began is in it; a peer that goes back may miss some
};

// States of a process's border (BackendOps::freeze_border).
enum BorderPhase {
  kBorderOpen = 0,
  kBorderFrozen = 1,
  // Between the two: a CLC has been taken, and nobody knows yet whether it counts. If set_cluster brings its number
  // before kBorderOpen, what was posted since has it. Does nothing unless the border is frozen.
  kBorderUndecided = 2,
};

// The kinds of numbers by which peers name an adapter's objects (BackendOps::want_number).
enum BackendNumber {
  kNumberOfQueuePair = 1,     // 24 bits
  kNumberOfMemoryRegion = 2,  // lkey and rkey
  kNumberOfMemoryWindow = 3,  // rkey; its lowest byte is of no importance
  kNumberOfXrcQueue = 4,      // 24 bits
};

// The services that the shim offers a backend. Valid for the process's lifetime (base namespace). Thread-safe.
struct HostServices {
  uint32_t abi_version;

  // The program's errno: backends store their failure's errno here before returning nullptr or -1.
  void (*set_errno)(int value);

  // Private anonymous zeroed memory that is no part of an image, or nullptr.
  void* (*map)(size_t bytes);
  void (*unmap)(void* address, size_t bytes);
  // Declares a mapping the backend made itself (memfd rings, device pages) as no part of an image, and back.
  void (*own_mapping)(void* address, size_t bytes);
  void (*disown_mapping)(void* address);

  // Moves a descriptor to a high number, CLOEXEC, shielded from the program; returns the new number or -1.
  int (*own_descriptor)(int fd);
  void (*close_descriptor)(int fd);

  // The job's exchange (shadowib/exchange/exchange.h), keys prefixed by the shim with the generation.
  // Return 0 or a positive errno: ENOENT (lookup), EEXIST (claim: taken by somebody else), EIO.
  int (*publish)(const char* key, const void* value, size_t bytes);
  int (*lookup)(const char* key, void* value, size_t capacity, size_t* bytes);
  int (*claim)(const char* key);

  // Copies the job's 32-byte secret. The backend keeps it only in memory from map(). 0 or an errno.
  int (*job_key)(uint8_t key[32]);

  // Value of a configuration variable of the program's environment (SHADOWIB_...), or nullptr.
  const char* (*config)(const char* name);

  void (*log)(int level, const char* text);  // level as in LogLevel

  // Loads a library that knows nothing of all this into the backend's link namespace, and keeps the objects it opens
  // out of the image (objects/foreign_library.h). A second call does so for libraries that it has loaded since. From
  // shadowib_backend_entry only. It stays over restarts, where the next copy of the backend finds it again. nullptr
  // if it is not to be had.
  void* (*open_library)(const char* name);

  // A backend with purges_completions calls this for each completion it purges, before destroy_qp or the way to RESET
  // returns. It also calls it for a completion that an overrun loses. The request is done with, although nobody will
  // poll it. May be called with locks of the backend held.
  void (*purged)(uint64_t wr_id);

  // Before the calling thread makes a descriptor (true), and when it has given it to own_descriptor or closed it
  // (false): base/unowned_descriptors.h.
  void (*unowned_descriptors)(bool begin);

  // A message between clusters waits for a CLC of this process's cluster. Either one of `cluster` came with SN `sn`.
  // Or `cluster` is this one, and its first request to another one was posted before CLC 1. Any thread, perhaps with
  // locks of the backend held; returns at once. May be called again for the same message.
  void (*needs_clc)(uint32_t cluster, uint32_t sn);

  // The log of requests to other clusters, one for each queue pair. It is memory of the shim's, which images hold, at
  // most SHADOWIB_LOG_BYTES of them in a process. A queue pair is named by the real one; the shim knows it by its
  // qp_context. All null: no log. Called with locks of the backend held; they take none that a caller may wait for.
  //
  // Room for a request of `bytes`, behind all others. The caller fills it before it lets go of its locks. Valid until
  // it is trimmed, also in an image. nullptr: the log is full, or memory is.
  struct BorderLogEntry* (*log_add)(struct ibv_qp* qp, uint32_t number, uint32_t bytes);
  // The entry behind `entry`, nullptr: the oldest one. nullptr if there is none.
  const struct BorderLogEntry* (*log_next)(struct ibv_qp* qp, const struct BorderLogEntry* entry);
  // Entries before `number` go (modulo 2^32). Their memory is kept for what follows.
  void (*log_trim)(struct ibv_qp* qp, uint32_t number);
  // All go: the connection has ended.
  void (*log_clear)(struct ibv_qp* qp);

  // A queue pair whose requests are in the log has run out of retries, since its peer's process is not there. It goes
  // on trying until BackendOps::judge_cluster answers that the peer's cluster will not go back. nullptr: it fails at
  // once. Any thread, with locks of the backend held; returns at once. May be called again and again.
  void (*cluster_lost)(uint32_t cluster);

  // The gate of a cluster that went back: BackendOps::gate_earliest is `earliest` now. `awaits`: something that waits
  // here may go as soon as GateState::earliest is not below that; kGateNothing if nothing waits for anything less.
  // Any thread, with locks of the backend held; returns at once. nullptr: who wants to know looks again and again.
  void (*gate_moved)(uint32_t cluster, uint64_t earliest, uint64_t awaits);

  // A message of a reliable connection to another cluster was posted, was held, or begins to be delivered. Any
  // thread, with locks of the backend held. nullptr: the job is not traced.
  void (*trace)(const struct BorderEvent* event);
};

// The functions of a backend. A slot left null means EOPNOTSUPP to the program unless said otherwise.
struct BackendOps {
  uint32_t abi_version;
  const char* name;  // "ib2tcp", "verbs", "null"

  // Devices. As the functions of the same name in verbs.h.
  struct ibv_device** (*get_device_list)(int* count);  // nullptr + errno: the native answer (ENOSYS without drivers)
  void (*free_device_list)(struct ibv_device** list);
  const char* (*get_device_name)(struct ibv_device* device);
  uint64_t (*get_device_guid)(struct ibv_device* device);  // network byte order
  int (*get_device_index)(struct ibv_device* device);
  struct ibv_context* (*open_device)(struct ibv_device* device);
  int (*close_device)(struct ibv_context* context);
  int (*query_device)(struct ibv_context* context, struct ibv_device_attr* attr);
  int (*query_port)(struct ibv_context* context, uint8_t port, struct ibv_port_attr* attr, size_t attr_bytes);
  int (*query_gid)(struct ibv_context* context, uint8_t port, int index, union ibv_gid* gid);
  int (*query_gid_type)(struct ibv_context* context, uint8_t port, unsigned index,
                        int* type);  // private enum: 0 IB/RoCEv1
  // Optional: all entries there are, of all ports, in one call; how many, or a negative errno.
  ssize_t (*query_gid_table)(struct ibv_context* context, struct ibv_gid_entry* entries, size_t capacity);
  int (*query_pkey)(struct ibv_context* context, uint8_t port, int index, uint16_t* pkey);  // network order
  int (*get_async_event)(struct ibv_context* context,
                         struct ibv_async_event* event);  // never blocks: EAGAIN if none;
                                                          // context->async_fd is pollable
  void (*ack_async_event)(struct ibv_async_event* event);

  // Protection domains and memory.
  struct ibv_pd* (*alloc_pd)(struct ibv_context* context);
  int (*dealloc_pd)(struct ibv_pd* pd);
  struct ibv_mr* (*reg_mr)(struct ibv_pd* pd, void* address, size_t bytes, uint64_t iova, int access);
  int (*dereg_mr)(struct ibv_mr* mr);
  // Changes what `flags` (IBV_REREG_MR_CHANGE_*) name; `pd` is the real one. 0 or an errno: nothing has changed then.
  // The region's keys may be others afterwards.
  int (*rereg_mr)(struct ibv_mr* mr, int flags, struct ibv_pd* pd, void* address, size_t bytes, int access);

  // Memory windows. Binds, of both types, are send requests (IBV_WR_BIND_MW), whose bind_mw.rkey becomes the window's
  // key: that of alloc_mw but for its lowest byte, which the shim chooses. Invalidations name real keys.
  struct ibv_mw* (*alloc_mw)(struct ibv_pd* pd, enum ibv_mw_type type);
  int (*dealloc_mw)(struct ibv_mw* mw);  // bound or not

  // Completion. get_cq_event never blocks: -1 with EAGAIN if none (channel->fd is pollable); *cq is the real CQ.
  struct ibv_comp_channel* (*create_comp_channel)(struct ibv_context* context);
  int (*destroy_comp_channel)(struct ibv_comp_channel* channel);
  struct ibv_cq* (*create_cq)(struct ibv_context* context, int cqe, void* cq_context,
                              struct ibv_comp_channel* channel, int comp_vector);
  int (*destroy_cq)(struct ibv_cq* cq);  // EBUSY while queue pairs use it
  // To at least `cqe` entries, said in cq->cqe; what is in it stays. 0 or an errno, EINVAL if it holds more.
  int (*resize_cq)(struct ibv_cq* cq, int cqe);
  int (*poll_cq)(struct ibv_cq* cq, int count, struct ibv_wc* wc);
  int (*req_notify_cq)(struct ibv_cq* cq, int solicited_only);
  int (*get_cq_event)(struct ibv_comp_channel* channel, struct ibv_cq** cq);
  void (*ack_cq_events)(struct ibv_cq* cq, unsigned count);

  // Queue pairs.
  struct ibv_qp* (*create_qp)(struct ibv_pd* pd, struct ibv_qp_init_attr* attr);
  int (*modify_qp)(struct ibv_qp* qp, struct ibv_qp_attr* attr, int mask);
  int (*query_qp)(struct ibv_qp* qp, struct ibv_qp_attr* attr, int mask, struct ibv_qp_init_attr* init);
  int (*destroy_qp)(struct ibv_qp* qp);
  // An error that names no request in *bad: of sends all were taken, of receives none.
  int (*post_send)(struct ibv_qp* qp, struct ibv_send_wr* wr, struct ibv_send_wr** bad);
  int (*post_recv)(struct ibv_qp* qp, struct ibv_recv_wr* wr, struct ibv_recv_wr** bad);
  // Address handles. Requests that were posted with one may outlive it.
  struct ibv_ah* (*create_ah)(struct ibv_pd* pd, struct ibv_ah_attr* attr);
  int (*destroy_ah)(struct ibv_ah* ah);
  // Multicast groups that a UD queue pair takes datagrams of. destroy_qp answers EBUSY while it is in one.
  int (*attach_mcast)(struct ibv_qp* qp, const union ibv_gid* gid, uint16_t lid);
  int (*detach_mcast)(struct ibv_qp* qp, const union ibv_gid* gid, uint16_t lid);
  // destroy_qp and a way to RESET take the queue pair's unpolled completions along: nobody polls one afterwards, and
  // HostServices::purged tells of each. If false, the shim takes everything out of the completion queue first to find
  // them.
  bool purges_completions;

  // Shared receive queues. A queue pair created with init.srq takes its receives from there; destroy_srq answers
  // EBUSY while one does. Async events name the real srq.
  struct ibv_srq* (*create_srq)(struct ibv_pd* pd, struct ibv_srq_init_attr* attr);
  int (*modify_srq)(struct ibv_srq* srq, struct ibv_srq_attr* attr, int mask);
  int (*query_srq)(struct ibv_srq* srq, struct ibv_srq_attr* attr);
  int (*destroy_srq)(struct ibv_srq* srq);
  int (*post_srq_recv)(struct ibv_srq* srq, struct ibv_recv_wr* wr, struct ibv_recv_wr** bad);

  // Extended reliable connections (XRC). fd and oflags are as in ibv_xrcd_init_attr. An fd of -1 makes a domain of
  // this handle alone. `shared`: another handle of the domain that it is to be of, or nullptr. `close_xrcd`
  // answers EBUSY while a queue pair or a shared receive queue exists that was made by the handle.
  struct ibv_xrcd* (*open_xrcd)(struct ibv_context* context, int fd, int oflags, struct ibv_xrcd* shared);
  int (*close_xrcd)(struct ibv_xrcd* xrcd);
  // A shared receive queue that initiators name by number, whose receives complete in `cq`. Async events name it as
  // they do others. destroy_srq may leave completions of its receives behind: the shim takes them out.
  struct ibv_srq* (*create_xrc_srq)(struct ibv_pd* pd, struct ibv_xrcd* xrcd, struct ibv_cq* cq,
                                    struct ibv_srq_init_attr* init);
  int (*get_srq_num)(struct ibv_srq* srq, uint32_t* number);  // 24 bits; unique in the device
  // IBV_QPT_XRC_RECV; initiators (IBV_QPT_XRC_SEND) come from create_qp. Its received messages can be polled after
  // its destruction or its way to RESET.
  struct ibv_qp* (*create_xrc_target)(struct ibv_xrcd* xrcd, struct ibv_qp_init_attr* init);

  // Optional: how many send requests of this queue pair, in posting order since creation, are known to have executed
  // (acknowledged; for READ and atomics: the result is in local memory). Null if the backend cannot know.
  uint64_t (*sq_executed)(struct ibv_qp* qp);

  // True: nothing but a completion tells that a request has run. Requests that the program wants none of get one all
  // the same, which the shim swallows; completion queues are made larger for it.
  bool needs_signals;

  // Optional, for backends that need a thread of the host: moves data for up to timeout_ms (< 0: until wake() or
  // something to do), returns 0. Called in a loop by the helper thread only; returns promptly after wake().
  // Called with timeout 0 by anyone: one non-blocking round.
  int (*progress)(int timeout_ms);
  void (*wake)(void);

  // Optional: the program's threads are being stopped (1) or run again (0). While they are, nobody can post a receive
  // or move a queue pair. Requests that are refused for that use up no retries, on either side. Otherwise a staggered
  // stop would use up finite ones. Any thread; nests not.
  void (*set_paused)(int paused);

  // Optional: an image is about to be taken, the program's threads are stopped. The backend declares mappings it has
  // not declared when they were made (HostServices::own_mapping). 0, or an errno: no image is taken.
  int (*before_image)(void);

  // Optional, for backends that do not pin the pages of memory regions: the program unmaps or protects memory, or has
  // made it usable again. Any thread, also one that holds locks of the program's allocator.
  MemoryWatch* memory_changes;

  // Optional, all or none: borders between the clusters of a federation. Not called in a process of no cluster.
  // The state of this process's cluster: once before a device is opened, then whenever it has changed, while the
  // program's threads are stopped or run. SN 0 is a legal state. Messages that are no longer above D are delivered.
  // 0 or an errno: EINVAL if an index is out of range, or not the one of the first call.
  int (*set_cluster)(const struct ClusterState* state);
  // `phase`: a BorderPhase. Connections to other clusters are neither read nor written from kBorderFrozen until
  // kBorderOpen. On return of kBorderFrozen no thread is within one. Any thread; nests not.
  void (*freeze_border)(int phase);
  // The messages that wait for a CLC, one a connection. Fills stamps[0..capacity), returns how many there are.
  size_t (*held_stamps)(struct HeldStamp* stamps, size_t capacity);
  // Fills in what the border has seen so far. Messages posted so far are traced before it returns. Any thread.
  void (*border_facts)(struct BorderFacts* facts);
  // `incarnation` of another cluster is over, and so are those before it. Connections to it are shut, and what is
  // held of it is dropped, before this returns. Queue pairs to it wait, without errors and time-outs. They go on when
  // a process of a later incarnation is at their peer's address. No call of set_cluster brings one of these
  // incarnations back. Returns 0, or EINVAL: no such cluster, or this process's own. Any thread.
  int (*cluster_gone)(uint32_t cluster, uint32_t incarnation);

  // Optional, all or none, with the slots above: a cluster that goes back (docs/internals/federation.md).
  // The state of a queue pair, and results of atomics in results[0..capacity). As many as fit are filled in;
  // state->results says how many there are. The state is that of a moment unless the border is frozen. 0 or an errno.
  // ENOENT: its peer is not known to be of another cluster, or it is not connected. EOPNOTSUPP: not of this type.
  int (*border_state)(struct ibv_qp* qp, struct BorderState* state, struct BorderResult* results, size_t capacity);
  // Gives that state to a queue pair that a restart has made, before it goes to RTR, with its log in place. The
  // border is frozen, and opens when all is posted. The requests that are posted first get the numbers from
  // state->first on. Both ends then say which number they expect, and only what the other has not run is sent.
  // results[0..state->results). 0 or an errno: EINVAL, ENOMEM, EOPNOTSUPP.
  int (*restore_border)(struct ibv_qp* qp, const struct BorderState* state, const struct BorderResult* results);
  // The gate of a cluster that went back: requests that completed earlier are sent again earlier, over all processes.
  // `gate_earliest`: the first completion of those that this process still has to send again; kGateNothing: none. It
  // grows, but for requests to an incarnation that cluster_gone has ended since. `set_gate`: the state of the others.
  // If they have not said it yet, it is set before cluster_gone. Returns 0, or EINVAL. Any thread.
  uint64_t (*gate_earliest)(uint32_t cluster);
  int (*set_gate)(uint32_t cluster, const struct GateState* others);
  // Nanoseconds of CLOCK_REALTIME. If that cluster goes back to a later moment, all connections of now have what it
  // needs. kGateNothing: never. 0: there was no connection. Any thread.
  uint64_t (*logged_since)(uint32_t cluster);
  // The answer to HostServices::cluster_lost. 1: the cluster has failed and may go back. Queue pairs to it wait,
  // and ask again. 0: those that have asked, and are still without a connection, fail. Returns 0, or EINVAL. Any
  // thread.
  int (*judge_cluster)(uint32_t cluster, int failed);
  // No CLC of this cluster before that number is gone back to: peers trim their logs.
  void (*clc_collected)(uint32_t sn);
  // The adapter as peers know it: its addresses, and how it numbers objects. Bytes for restore_identity alone, of
  // this backend and perhaps this version. Returns how many there are; fills no more than `capacity`. 0: no device
  // was opened.
  size_t (*identity)(void* buffer, size_t capacity);
  // Before the first device is listed, after set_cluster. The devices take the addresses that they had. If another
  // process than this one's earlier life holds them, opening fails with EADDRINUSE. Clusters whose earlier
  // incarnation cluster_gone has told of by then go back with this one. The logs have this machine's times, so
  // requests logged for them are logged still. 0 or an errno: EINVAL, EBUSY (too late).
  int (*restore_identity)(const void* buffer, size_t bytes);
  // The next object of that kind gets `number`, which it had before. After restore_identity. 0 or an errno: EINVAL,
  // EEXIST (another one has it), ENOMEM.
  int (*want_number)(enum BackendNumber kind, uint32_t number);

  // Optional: JSON object with figures for `shadowib status`, written to buffer; returns bytes.
  size_t (*describe)(char* buffer, size_t capacity);
};

// The one exported symbol. Fills *ops; returns 0 or a positive errno with a logged reason.
using BackendEntry = int (*)(const HostServices* host, BackendOps* ops);

}  // namespace shadowib

extern "C" int shadowib_backend_entry(const shadowib::HostServices* host, shadowib::BackendOps* ops);
