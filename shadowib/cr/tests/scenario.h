/* Programs for restart_test.py: each brings its objects into a state, has itself checkpointed and killed, and checks
 * after the restart that nothing but what verbs allow can be seen.
 *
 *   restart_scenarios NAME [natively]     exit code 0: all was right; 1: what was not is on standard error
 * natively: without the shim and without the checkpoints, to see what an adapter does by itself.
 * Most have two queue pairs of one process, A and B, connected to each other; request n has wr_id n. */
#pragma once

#include <infiniband/verbs.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>

#define CHECK(condition) check((condition) != 0, #condition, __FILE__, __LINE__)
#define EXPECT(cq, id, status) expect(cq, id, status, __FILE__, __LINE__)

enum { kDepth = 64 };
extern int any_time; /* seconds until what is due would have come */

struct scenario {
  const char* name;
  void (*run)(void);
};
/* One file for each concern; a name of NULL ends a list. */
extern const struct scenario state_scenarios[], shared_receive_scenarios[], extended_scenarios[],
    extended_connection_scenarios[], datagram_scenarios[], flow_scenarios[], window_scenarios[],
    multicast_scenarios[], job_scenarios[], memory_scenarios[], churn_scenarios[], connection_scenarios[],
    driver_scenarios[], hazard_request_scenarios[], hazard_queue_scenarios[], hazard_process_scenarios[],
    signal_scenarios[], family_scenarios[], process_file_scenarios[], file_lock_scenarios[], kernel_state_scenarios[],
    system_v_scenarios[], guest_scenarios[];

extern struct ibv_context* context;
extern struct ibv_pd* pd;
extern struct ibv_comp_channel* channel; /* receive_cq's */
extern struct ibv_cq *send_cq, *receive_cq;
extern struct ibv_qp *a, *b;
extern struct ibv_mr* mr; /* all of memory */
extern char* memory;
extern int lid;
extern int gid_index; /* where addresses are GIDs (RoCE), else -1: all ends are on one adapter */
extern union ibv_gid gid;
/* Attributes of queue pairs made and connected from now on. */
extern uint8_t rnr_retry, min_rnr_timer, ack_timeout, read_depth;
extern uint16_t pkey_index;
extern unsigned qp_access;
extern uint32_t send_depth;

void check(int condition, const char* text, const char* file, int line);
double now(void); /* seconds */
int readable(int fd, int timeout_ms);

int take_checkpoint(unsigned flags); /* returns what shadowib_checkpoint(3) does, whose flags they are */
void checkpoint_and_kill(void);      /* returns in the restarted process only */
void checkpoint_and_go_on(void);
void join(void); /* the job, without a device */
/* Called with 0 just before the threads are stopped for one, with others afterwards. */
void before_checkpoint(void (*hook)(int event, void* unused));

/* Objects. make_pair: all of them, A and B connected. */
void open_device(void);
void find_address(void); /* of the context's first port */
/* A missing feature of a device is told on standard error. */
int is_soft_roce(void);
int has_capability(enum ibv_device_cap_flags flag);
void allocate(size_t bytes);
struct ibv_qp* create_queue_pair(struct ibv_srq* shared); /* in INIT */
struct ibv_qp* create_datagram_qp(uint32_t qkey);         /* in RTS */
void to_init(struct ibv_qp* qp);
void to_state(struct ibv_qp* qp, enum ibv_qp_state state);
struct ibv_ah_attr address_of(int peer_lid);
void connect_to(struct ibv_qp* qp, int peer_lid, uint32_t peer_number);
void make_pair(size_t bytes);

/* Requests, at the beginning of memory. */
void post_receive(struct ibv_qp* qp, uint64_t id, uint32_t bytes);
void post(struct ibv_qp* qp, enum ibv_wr_opcode opcode, uint64_t id, uint32_t bytes, uint32_t rkey);
void send_one(uint64_t id); /* from A to B, with both completions */

/* The next completion is this one; waits for it. */
void expect(struct ibv_cq* cq, uint64_t id, enum ibv_wc_status status, const char* file, int line);
void expect_nothing_more(void);

/* The next ones that are sent (hazards.c: of the backend that misbehaves). */
void lose_datagrams(uint32_t count);

/* Files by which two processes of a test tell each other "LID NUMBER". */
void tell(const char* file, uint32_t number);
void await(const char* file, int* peer_lid, uint32_t* number);
