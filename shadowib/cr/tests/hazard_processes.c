/* Hazards of threads, adapters, children and peers. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hazards.h"
#include "shadowib/base/testing/held_arena.h"

/* After the moment at which it was to be stopped: for a while, or without the guard until it is, and for good. Calls
 * nothing that has to be bound. */
static int guard_is_off;

__attribute__((constructor)) static void look_for_the_guard(void) {
  guard_is_off = getenv("SHADOWIB_GUARD_OFF") != NULL;
}

static void stay(double seconds) {
  for (const double end = now() + seconds; guard_is_off || now() < end;) usleep(1000);
}

/* H14: a thread is inside of an adapter's library when it is to be stopped. */
static void* post_one(void* unused) {
  (void)unused;
  write_to(a, 1, 1, 2, IBV_SEND_SIGNALED);
  return NULL;
}

static void stopped_in_a_post(void) {
  pthread_t thread;
  make_free_pair();
  fill(1, 'w');
  COMMAND(stay_inside, guard_is_off ? 2 : 1);
  CHECK(pthread_create(&thread, NULL, post_one, NULL) == 0);
  while (ASK(inside) == 0) usleep(100);
  const int rc = take_checkpoint(1);
  HOLDS(ASK(stopped_inside) == 0, "a thread was stopped inside the backend");
  CHECK(rc == 1);
  CHECK(pthread_join(thread, NULL) == 0);
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  CHECK(place(2)[0] == 'w');
}

/* H14: one inside of the loader, with its lock, until after the moment for which it was to be stopped. */
static int stay_in_the_loader(struct dl_phdr_info* info, size_t size, void* entered) {
  (void)info;
  (void)size;
  *(volatile int*)entered = 1;
  while (ASK(paused) == 0) usleep(1000);
  stay(1);
  return 1;
}

static void* look_at_libraries(void* entered) {
  dl_iterate_phdr(stay_in_the_loader, entered);
  return NULL;
}

static void stopped_in_the_loader(void) {
  static volatile int entered;
  pthread_t thread;
  make_free_pair();
  CHECK(pthread_create(&thread, NULL, look_at_libraries, (void*)&entered) == 0);
  while (!entered) usleep(100);
  checkpoint_and_kill();
  CHECK(pthread_join(thread, NULL) == 0);
  send_one(1);
}

/* H14: one that does not let go of the loader's lock for long, since it has so much to do there. */
static int work_in_the_loader(struct dl_phdr_info* info, size_t size, void* entered) {
  (void)info;
  (void)size;
  *(volatile int*)entered = 1;
  while (ASK(paused) == 0) usleep(1000);
  for (const double end = now() + 7; now() < end;) continue;
  return 1;
}

static void* look_at_libraries_for_long(void* entered) {
  dl_iterate_phdr(work_in_the_loader, entered);
  return NULL;
}

static void stopped_in_a_long_call_of_the_loader(void) {
  static volatile int entered;
  pthread_t thread;
  make_free_pair();
  CHECK(pthread_create(&thread, NULL, look_at_libraries_for_long, (void*)&entered) == 0);
  while (!entered) usleep(100);
  checkpoint_and_kill();
  CHECK(pthread_join(thread, NULL) == 0);
  send_one(1);
}

/* H14: one inside of malloc, with the lock of the arena where the loader has put what it knows of the backend. */
static unsigned* arena_lock;

static void* allocate_for_long(void* entered) {
  hold_arena(arena_lock);
  *(volatile int*)entered = 1;
  while (ASK(paused) == 0) usleep(1000);
  stay(1);
  release_arena(arena_lock);
  return NULL;
}

static void stopped_in_malloc(void) {
  static volatile int entered;
  pthread_t thread;
  make_free_pair();
  arena_lock = lock_of_main_arena();
  CHECK(pthread_create(&thread, NULL, allocate_for_long, (void*)&entered) == 0);
  while (!entered) usleep(100);
  checkpoint_and_kill();
  CHECK(pthread_join(thread, NULL) == 0);
  send_one(1);
}

/* H14: one inside of malloc, when all that the loader knows of the backend is of another arena: of the thread that
 * has loaded it at the restart. But what the program's own dlopen calls have put aside is of this one, and whoever
 * closes a library next gives it back: with the lock, if it is more than a thread keeps for itself. */
enum { kScope = 300 }; /* libraries that need one */

static void leave_a_large_scope_behind(void) {
  char from[4096], to[4096], bytes[1 << 16];
  struct link_map* map;
  void* library = dlopen("libnss_hesiod.so.2", RTLD_NOW | RTLD_LOCAL); /* which needs libresolv.so.2 */
  CHECK(library != NULL && dlinfo(library, RTLD_DI_LINKMAP, &map) == 0);
  snprintf(from, sizeof(from), "%s", map->l_name);
  const int source = open(from, O_RDONLY | O_CLOEXEC);
  CHECK(source >= 0);
  const ssize_t length = read(source, bytes, sizeof(bytes));
  CHECK(length > 0 && length < (ssize_t)sizeof(bytes) && close(source) == 0);
  for (int i = 0; i < kScope; ++i) {
    snprintf(to, sizeof(to), "%s.%d.so", getenv("SHADOWIB_WAYWARD"), i);
    const int copy = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0700);
    CHECK(copy >= 0 && write(copy, bytes, (size_t)length) == length && close(copy) == 0);
    CHECK(dlopen(to, RTLD_NOW | RTLD_LOCAL) != NULL);
  }
}

static void stopped_in_malloc_once_restarted(void) {
  static volatile int entered;
  pthread_t thread;
  make_free_pair();
  arena_lock = lock_of_main_arena();
  checkpoint_and_kill();
  leave_a_large_scope_behind();
  CHECK(pthread_create(&thread, NULL, allocate_for_long, (void*)&entered) == 0);
  while (!entered) usleep(100);
  checkpoint_and_kill();
  CHECK(pthread_join(thread, NULL) == 0);
  send_one(1);
}

/* H14: one inside of the program's own munmap, which its libraries have written over the C library's, with their lock
 * (Open MPI and UCX do so to hear of memory that goes). */
static volatile unsigned unmap_lock;

static int turned_munmap(void* address, size_t bytes) {
  while (__atomic_exchange_n(&unmap_lock, 1, __ATOMIC_ACQUIRE) != 0) sched_yield();
  const long rc = syscall(SYS_munmap, address, bytes);
  __atomic_store_n(&unmap_lock, 0, __ATOMIC_RELEASE);
  return (int)rc;
}

static void turn_munmap(void) {
  unsigned char jump[13] = {0x49, 0xbb, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0xff, 0xe3}; /* movabs $x, %r11; jmp *%r11 */
  /* By name: RTLD_NEXT finds libc's for libraries, but the guard of a preloaded library for a program. */
  void* const libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  unsigned char* const munmap_of_libc = libc != NULL ? dlsym(libc, "munmap") : NULL;
  CHECK(munmap_of_libc != NULL);
  const uintptr_t target = (uintptr_t)turned_munmap, page = (uintptr_t)munmap_of_libc & ~(uintptr_t)4095;
  memcpy(jump + 2, &target, sizeof(target));
  CHECK(mprotect((void*)page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC) == 0);
  memcpy(munmap_of_libc, jump, sizeof(jump));
  CHECK(mprotect((void*)page, 8192, PROT_READ | PROT_EXEC) == 0);
}

/* Behind the start of the command, which unmaps memory, too; and the checkpoint goes on only when it is inside. */
static volatile int unmap_may_begin, unmap_has_begun;

static void let_unmap_begin(int event, void* unused) {
  (void)unused;
  if (event != 0) return; /* before a checkpoint */
  unmap_may_begin = 1;
  while (!unmap_has_begun) usleep(100);
}

static void* unmap_for_long(void* unused) {
  (void)unused;
  while (!unmap_may_begin) usleep(100);
  while (__atomic_exchange_n(&unmap_lock, 1, __ATOMIC_ACQUIRE) != 0) usleep(100);
  unmap_has_begun = 1;
  while (ASK(paused) == 0) usleep(1000);
  stay(1);
  __atomic_store_n(&unmap_lock, 0, __ATOMIC_RELEASE);
  return NULL;
}

static void stopped_in_munmap(void) {
  pthread_t thread;
  make_free_pair();
  void* volatile block = malloc(1000000); /* from now on malloc maps nothing for less */
  free(block);
  checkpoint_and_go_on(); /* whatever allocates for the first time has done so */
  turn_munmap();
  before_checkpoint(let_unmap_begin);
  CHECK(pthread_create(&thread, NULL, unmap_for_long, NULL) == 0);
  checkpoint_and_kill();
  HOLDS(unmap_lock == 0, "a thread was stopped inside of the program's munmap");
  CHECK(pthread_join(thread, NULL) == 0);
  send_one(1);
}

/* H14: one that is inside of the shim, and waits there for another that is stopped. It starts the command, and unmaps
 * the memory in which it has done so. */
static void* unmap_while_the_command_starts(void* entered) {
  while (__atomic_exchange_n(&unmap_lock, 1, __ATOMIC_ACQUIRE) != 0) usleep(100);
  *(volatile int*)entered = 1;
  while (ASK(paused) == 0) usleep(1000);
  __atomic_store_n(&unmap_lock, 0, __ATOMIC_RELEASE);
  return NULL;
}

static void inside_behind_a_stopped_thread(void) {
  static volatile int entered;
  pthread_t thread;
  make_free_pair();
  checkpoint_and_go_on();
  turn_munmap();
  CHECK(pthread_create(&thread, NULL, unmap_while_the_command_starts, (void*)&entered) == 0);
  while (!entered) usleep(100);
  checkpoint_and_kill();
  CHECK(pthread_join(thread, NULL) == 0);
  send_one(1);
}

/* H14: one for which the loader looks a symbol up, as its control block says (tcbhead_t, gscope_flag). What the
 * thread calls in between is bound before: a lookup of its own would take the word back. */
static void* bind_for_long(void* entered) {
  unsigned word = 1;
  ASK(paused);
  usleep(now() < 0);
  __asm__ volatile("movl %0, %%fs:0x1c" : : "r"(word) : "memory");
  *(volatile int*)entered = 1;
  while (ASK(paused) == 0) usleep(1000);
  stay(0.2);
  word = 0;
  __asm__ volatile("xchgl %0, %%fs:0x1c" : "+r"(word) : : "memory");
  CHECK(word != 0);
  unsigned char* control_block;
  __asm__("movq %%fs:0, %0" : "=r"(control_block));
  if (word == 2) syscall(SYS_futex, control_block + 0x1c, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0); /* dlclose waits */
  return NULL;
}

/* dlclose waits only if there are scopes to free: each of these makes the one of the C library longer. */
static void leave_scopes_behind(void) {
  static const char* const names[] = {"libBrokenLocale.so.1", "libanl.so.1",     "libdl.so.2",   "libnss_compat.so.2",
                                      "libnss_hesiod.so.2",   "libpthread.so.0", "libmvec.so.1", "libnss_files.so.2",
                                      "libnss_dns.so.2",      "libresolv.so.2",  "librt.so.1",   "libutil.so.1"};
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); ++i)
    CHECK(dlopen(names[i], RTLD_NOW | RTLD_LOCAL) != NULL);
}

static void stopped_while_binding(void) {
  static volatile int entered;
  pthread_t thread;
  make_free_pair();
  leave_scopes_behind();
  CHECK(pthread_create(&thread, NULL, bind_for_long, (void*)&entered) == 0);
  while (!entered) usleep(100);
  checkpoint_and_kill();
  CHECK(pthread_join(thread, NULL) == 0);
  send_one(1);
}

/* H16: a write has completed at its sender, and the receiver's adapter has not put it into memory yet. */
static void write_on_its_way_to_memory(void) {
  make_free_pair();
  fill(1, 'w');
  COMMAND(place_late, 1);
  write_to(a, 1, 1, 2, IBV_SEND_SIGNALED);
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  CHECK(place(2)[0] == 0);
  checkpoint_and_kill();
  HOLDS(place(2)[0] == 'w' && place(2)[kBytes - 1] == 'w', "a write that had completed is lost");
  send_one(2);
}

/* H17: a message of XRC is in the receiver's memory, which knows it by looking there. That its receive was taken and
 * that it has run is not told yet; the target of the connection itself never has a receive. */
static void extended_write_seen(void) {
  struct ibv_xrcd_init_attr domain_attr = {IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, -1, O_CREAT};
  struct ibv_srq_init_attr_ex srq_attr = {.attr = {.max_wr = 4, .max_sge = 1}, .srq_type = IBV_SRQT_XRC};
  struct ibv_qp_init_attr_ex target = {.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD};
  struct ibv_qp_init_attr initiator = {.cap = {kDepth, 0, 1, 0, 0}, .qp_type = IBV_QPT_XRC_SEND};
  uint32_t number;
  open_device();
  allocate(1 << 16);
  target.xrcd = srq_attr.xrcd = ibv_open_xrcd(context, &domain_attr);
  srq_attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
  srq_attr.pd = pd;
  srq_attr.cq = receive_cq;
  struct ibv_srq* srq = ibv_create_srq_ex(context, &srq_attr);
  CHECK(srq != NULL && ibv_get_srq_num(srq, &number) == 0);
  initiator.send_cq = send_cq;
  CHECK((a = ibv_create_qp(pd, &initiator)) != NULL && (b = ibv_create_qp_ex(context, &target)) != NULL);
  to_init(a);
  to_init(b);
  connect_to(a, lid, b->qp_num);
  connect_to(b, lid, a->qp_num);
  struct ibv_sge sge = {(uintptr_t)place(1), kBytes, mr->lkey};
  struct ibv_recv_wr receive = {.wr_id = 101, .sg_list = &sge, .num_sge = 1}, *bad_receive;
  CHECK(ibv_post_srq_recv(srq, &receive, &bad_receive) == 0);
  withhold_answers();
  COMMAND(hold_receives, 1);
  fill(1, 'w');
  struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE_WITH_IMM, 1, &sge, 2, IBV_SEND_SIGNALED), *bad;
  wr.qp_type.xrc.remote_srqn = number;
  CHECK(ibv_post_send(a, &wr, &bad) == 0);
  await_char(2, 'w');
  fill(2, '-');
  checkpoint_and_kill_answering_late();
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  EXPECT(receive_cq, 101, IBV_WC_SUCCESS);
  HOLDS(place(2)[0] == '-', "the write was made twice");
  expect_nothing_more();
}

/* H19: a child has its parent's handles and none of the objects. */
static int in_child(void) {
  struct ibv_sge sge = {(uintptr_t)place(1), kBytes, mr->lkey};
  struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, 9, &sge, 2, IBV_SEND_SIGNALED), *bad;
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
  return ibv_post_send(a, &wr, &bad) != 0 && ibv_modify_qp(a, &attr, IBV_QP_STATE) == EPERM &&
         ibv_destroy_qp(a) == EPERM && ibv_dereg_mr(mr) == EPERM && ibv_destroy_cq(send_cq) == EPERM;
}

static void forked(void) {
  int status;
  make_free_pair();
  const pid_t child = fork();
  if (child == 0) _exit(in_child() ? 0 : 3);
  CHECK(waitpid(child, &status, 0) == child);
  HOLDS(status == 0, "the child took its parent's objects for its own");
  send_one(1);
  checkpoint_and_kill();
  send_one(2);
}

/* H20: the peer is gone and nobody has said so yet: what an adapter would say when it has waited long enough. */
static void peer_gone(void) {
  make_free_pair();
  COMMAND(hold_posts, 1);
  take_in(a, 101, 3);
  write_to(a, 1, 1, 2, IBV_SEND_SIGNALED);
  write_to(a, 2, 1, 2, 0);
  CHECK(ibv_destroy_qp(b) == 0);
  checkpoint_and_kill();
  EXPECT(receive_cq, 101, IBV_WC_WR_FLUSH_ERR);
  EXPECT(send_cq, 1, IBV_WC_RETRY_EXC_ERR);
  EXPECT(send_cq, 2, IBV_WC_WR_FLUSH_ERR);
  expect_nothing_more();
}

/* H20: the peer is not ready to receive and cannot become so, since its program is stopped. The adapter gives up
 * while threads are stopped: after the polls of settling, and later. */
static void peer_not_ready(void) {
  make_free_pair();
  to_state(b, IBV_QPS_RESET);
  to_init(b);
  COMMAND(hold_posts, 1);
  take_in(a, 101, 3);
  take_in(b, 102, 2);
  fill(1, '1');
  write_to(a, 1, 1, 4, IBV_SEND_SIGNALED);
  give(a, IBV_WR_SEND, 2, 1, 0, 0);
  for (uint32_t polls = 3; polls <= 9; polls += 2) {
    COMMAND(lose_peer, polls);
    checkpoint_and_go_on();
    COMMAND(lose_peer, 0);
    expect_nothing_more();
    HOLDS(ASK(withheld) == 2, "a request is lost");
  }
  COMMAND(lose_peer, 3);
  COMMAND(begins_with, 1);
  checkpoint_and_kill();
  expect_nothing_more();
  HOLDS(ASK(withheld) == 2, "a request is lost");
  connect_to(b, lid, a->qp_num);
  COMMAND(hold_posts, 0);
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  EXPECT(receive_cq, 102, IBV_WC_SUCCESS);
  CHECK(place(2)[0] == '1' && place(4)[0] == '1');
  fill(1, '3');
  give(b, IBV_WR_SEND, 3, 1, 0, IBV_SEND_SIGNALED);
  EXPECT(receive_cq, 101, IBV_WC_SUCCESS);
  EXPECT(send_cq, 3, IBV_WC_SUCCESS);
  expect_nothing_more();
}

const struct scenario hazard_process_scenarios[] = {
    {"stopped_in_a_post", stopped_in_a_post},
    {"stopped_in_the_loader", stopped_in_the_loader},
    {"stopped_in_a_long_call_of_the_loader", stopped_in_a_long_call_of_the_loader},
    {"stopped_in_malloc", stopped_in_malloc},
    {"stopped_in_malloc_once_restarted", stopped_in_malloc_once_restarted},
    {"stopped_in_munmap", stopped_in_munmap},
    {"inside_behind_a_stopped_thread", inside_behind_a_stopped_thread},
    {"stopped_while_binding", stopped_while_binding},
    {"write_on_its_way_to_memory", write_on_its_way_to_memory},
    {"extended_write_seen", extended_write_seen},
    {"forked", forked},
    {"peer_gone", peer_gone},
    {"peer_not_ready", peer_not_ready},
    {NULL, NULL}};
