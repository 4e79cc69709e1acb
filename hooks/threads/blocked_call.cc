#include "hooks/threads/blocked_call.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "hooks/raw/raw_signal.h"
#include "hooks/raw/tasks.h"
#include "hooks/threads/request_signals.h"
#include "shadowib/base/lock.h"

// The rest of a transfer that a stop has cut short. Entered by a signal's return as if the system call had not
// returned yet: rax its number, rsi and rdx what is left, rcx where to go on, r11 how many bytes are done (a system
// call changes rcx and r11, so nobody needs theirs). Returns there with the sum. What comes after a part was done
// ends it as it would have ended the whole: an error is the program's next call's.
extern "C" const char shadowib_go_on_transferring[], shadowib_transfer_called[];
asm(R"(
.text
.hidden shadowib_go_on_transferring, shadowib_transfer_called
.globl shadowib_go_on_transferring, shadowib_transfer_called
.type shadowib_go_on_transferring, @function
shadowib_go_on_transferring:
  .cfi_startproc
  .cfi_signal_frame
  .cfi_def_cfa %rsp, 0
  .cfi_register %rip, %rcx
  lea -160(%rsp), %rsp  # 128: the red zone
  .cfi_def_cfa_offset 160
  mov %rcx, (%rsp)
  mov %r11, 8(%rsp)
  mov %rax, 16(%rsp)
  .cfi_offset %rip, -160
  syscall
shadowib_transfer_called:
  mov 8(%rsp), %r11
  sub %r11, %rsi
  add %r11, %rdx
  test %rax, %rax
  jns 1f
  xor %eax, %eax
1: add %r11, %rax
  mov (%rsp), %rcx
  .cfi_register %rip, %rcx
  lea 160(%rsp), %rsp
  .cfi_def_cfa_offset 0
  jmp *%rcx
  .cfi_endproc
  .size shadowib_go_on_transferring, . - shadowib_go_on_transferring
)");

namespace shadowib {

thread_local TimedCall t_timed_call;

namespace {

void set_time_out(const SocketTimeOut& socket, std::int64_t ns) {
  const std::int64_t us = (ns + 999) / 1000;
  const timeval time{us / 1000000, us % 1000000};
  ::syscall(SYS_setsockopt, socket.fd, SOL_SOCKET, socket.option, &time, sizeof(time));
}

}  // namespace

TimedCallScope::TimedCallScope(std::int64_t number, std::int64_t timeout_ns, SocketTimeOut socket)
    : outer_(t_timed_call), timeout_ns_(timeout_ns) {
  TimedCall& timed = t_timed_call;
  timed.number = -1;  // a stop between these lines must not see half a record
  std::atomic_signal_fence(std::memory_order_seq_cst);
  timed.socket = socket;
  timed.shortened = false;
  std::uint32_t stops;
  do {  // a stop between reading the clock and setting the number would move nothing on
    stops = timed.stops;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    timed.deadline_ns = monotonic_ns() + timeout_ns;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    timed.number = number;
    std::atomic_signal_fence(std::memory_order_seq_cst);
  } while (timed.stops != stops);
}

TimedCallScope::~TimedCallScope() {
  if (t_timed_call.shortened) {
    const int saved = errno;
    set_time_out(t_timed_call.socket, timeout_ns_);
    errno = saved;
  }
  outer_.stops = t_timed_call.stops;
  t_timed_call = outer_;
}

namespace {

constexpr std::uint8_t kSyscallInstruction[2] = {0x0f, 0x05};
constexpr int kPselectNumber = SYS_pselect6;

// Calls whose EINTR says only "interrupted, nothing done", so that issuing them again is what the program wants. Not
// in the list: close (the descriptor is gone), and whatever does not block.
bool may_issue_again(std::int64_t number) {
  switch (number) {
    case SYS_read:
    case SYS_readv:
    case SYS_pread64:
    case SYS_preadv:
    case SYS_preadv2:
    case SYS_write:
    case SYS_writev:
    case SYS_pwrite64:
    case SYS_pwritev:
    case SYS_pwritev2:
    case SYS_recvfrom:
    case SYS_recvmsg:
    case SYS_recvmmsg:
    case SYS_sendto:
    case SYS_sendmsg:
    case SYS_sendmmsg:
    case SYS_accept:
    case SYS_accept4:
    case SYS_connect:
    case SYS_open:
    case SYS_openat:
    case SYS_poll:
    case SYS_ppoll:
    case SYS_select:
    case SYS_pselect6:
    case SYS_epoll_wait:
    case SYS_epoll_pwait:
    case 441 /* epoll_pwait2 */:
    case SYS_nanosleep:
    case SYS_clock_nanosleep:
    case SYS_pause:
    case SYS_rt_sigsuspend:
    case SYS_rt_sigtimedwait:
    case SYS_futex:
    case 449 /* futex_waitv */:
    case SYS_wait4:
    case SYS_waitid:
    case SYS_flock:
    case SYS_fcntl:
    case SYS_ioctl:
    case SYS_semop:
    case SYS_semtimedop:
    case SYS_msgsnd:
    case SYS_msgrcv:
    case SYS_mq_timedsend:
    case SYS_mq_timedreceive:
    case SYS_io_getevents:
    case SYS_io_pgetevents:
    case SYS_io_uring_enter:
    case SYS_sendfile:
    case SYS_splice:
    case SYS_tee:
    case SYS_vmsplice:
    case SYS_copy_file_range:
    case SYS_getrandom:
      return true;
    default:
      return false;
  }
}

// The register that holds the relative time-out's timespec, or 0; poll and epoll take milliseconds instead.
int timespec_register(std::int64_t number) {
  switch (number) {
    case SYS_nanosleep:
      return REG_RDI;
    case SYS_clock_nanosleep:
    case SYS_rt_sigtimedwait:
      return REG_RDX;
    case SYS_semtimedop:
    case SYS_futex:
    case 441:
    case SYS_ppoll:
      return number == SYS_ppoll ? REG_RDX : REG_R10;
    case kPselectNumber:
      return REG_R8;
    default:
      return 0;
  }
}

int milliseconds_register(std::int64_t number) {
  switch (number) {
    case SYS_poll:
      return REG_RDX;
    case SYS_epoll_wait:
    case SYS_epoll_pwait:
      return REG_R10;
    default:
      return 0;
  }
}

bool same_call(const greg_t* regs, const BlockedSyscall& seen, std::uint64_t program_counter) {
  static constexpr int kRegisters[6] = {REG_RDI, REG_RSI, REG_RDX, REG_R10, REG_R8, REG_R9};
  if (seen.number < 0 || seen.program_counter != program_counter) return false;
  if (seen.stack_pointer != static_cast<std::uint64_t>(regs[REG_RSP])) return false;
  for (int i = 0; i < 6; ++i)
    if (seen.arguments[i] != static_cast<std::uint64_t>(regs[kRegisters[i]])) return false;
  return true;
}

// Reads code before `address`; the instruction at address - 2 was executed, so its page is there, the page before may
// not be.
std::int64_t number_from_code(std::uint64_t address) {
  if ((address - 2) % 4096 < 5) return -1;
  const auto* code = reinterpret_cast<const std::uint8_t*>(address - 2);
  if (code[-5] == 0xb8) {  // mov $number, %eax
    std::uint32_t number;
    std::memcpy(&number, code - 4, sizeof(number));
    return number < 1024 ? static_cast<std::int64_t>(number) : -1;
  }
  if (code[-2] == 0x31 && code[-1] == 0xc0) return SYS_read;  // xor %eax, %eax
  return -1;
}

bool is_stream(int fd) {
  int type = 0;
  socklen_t length = sizeof(type);
  return ::syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_STREAM;
}

// Calls that block until all is transferred, unless a signal comes: buffer in rsi, length in rdx. A datagram is whole
// however much shorter than its buffer it is.
bool transfers_all(std::int64_t number, const greg_t* regs) {
  return number == SYS_write || number == SYS_sendto ||
         (number == SYS_recvfrom && (regs[REG_R10] & MSG_WAITALL) != 0 && is_stream(static_cast<int>(regs[REG_RDI])));
}

// What was received is there still.
bool only_looks(std::int64_t number, const greg_t* regs) {
  return number == SYS_recvfrom && (regs[REG_R10] & MSG_PEEK) != 0;
}

// What shadowib_go_on_transferring has on the stack.
struct TransferFrame {
  std::uint64_t program_counter, done, number;
};

// A waiting signal of the program that would have interrupted this call: delivered next, unblocked, with a handler,
// and, for calls the kernel restarts, without SA_RESTART.
bool program_signal_waits(const ucontext_t* context, bool kernel_restarts) {
  std::uint64_t pending = 0, blocked = 0;
  if (::syscall(SYS_rt_sigpending, &pending, sizeof(pending)) != 0 || pending == 0) return false;
  std::memcpy(&blocked, &context->uc_sigmask, sizeof(blocked));
  pending &= ~blocked;
  for (int signal = 1; pending != 0; ++signal, pending >>= 1) {
    if ((pending & 1) == 0 || signal == stop_signal_number() || is_request_signal(signal)) continue;
    KernelSigaction action{};
    if (raw_sigaction(signal, nullptr, &action) != 0) continue;
    if (action.handler == kHandlerDefault || action.handler == kHandlerIgnore) continue;
    if (!kernel_restarts || (action.flags & SA_RESTART) == 0) return true;
  }
  return false;
}

}  // namespace

bool read_blocked_syscall(int tid, BlockedSyscall* call) {
  char text[256];
  int length = read_task_file(tid, "syscall", text, sizeof(text));
  call->number = -1;
  if (length <= 0 || text[0] == 'r' || text[0] == '-') return false;
  const char* p = text;
  std::int64_t number = static_cast<std::int64_t>(parse_number(&p));
  for (auto& argument : call->arguments) argument = parse_number(&p);
  call->stack_pointer = parse_number(&p);
  call->program_counter = parse_number(&p);
  call->number = number;
  return true;
}

InterruptedCall::InterruptedCall(ucontext_t* context, const BlockedSyscall* seen) : context_(context) {
  const TimedCall& timed = t_timed_call;
  // Taken down wherever the thread is: it may be about to enter the call, for the first time or again.
  if (timed.number >= 0) left_ns_ = timed.deadline_ns - monotonic_ns();
  const greg_t* regs = context->uc_mcontext.gregs;
  auto rip = static_cast<std::uint64_t>(regs[REG_RIP]);
  if (regs[REG_RAX] != -EINTR) {
    // The kernel has moved the program counter back already. Only a call seen blocked is known to be one.
    if (seen != nullptr && same_call(regs, *seen, rip + 2) && regs[REG_RAX] == seen->number) {
      kind_ = Kind::kRestartedByKernel;
      number_ = seen->number;
    } else if (seen != nullptr && same_call(regs, *seen, rip) && transfers_all(seen->number, regs) &&
               regs[REG_RAX] > 0 && regs[REG_RAX] < regs[REG_RDX]) {
      kind_ = only_looks(seen->number, regs) ? Kind::kEndedByUs : Kind::kCutShort;
      number_ = seen->number;
      time_out_known_ = timed.number == number_;
    }
    return;
  }
  if (rip % 4096 < 2 || std::memcmp(reinterpret_cast<const void*>(rip - 2), kSyscallInstruction, 2) != 0) {
    if (seen == nullptr || !same_call(regs, *seen, rip)) return;
  }
  if (seen != nullptr && same_call(regs, *seen, rip))
    number_ = seen->number;
  else if ((number_ = number_from_code(rip)) < 0)
    number_ = timed.number;
  if (number_ < 0 && rip == reinterpret_cast<std::uint64_t>(shadowib_transfer_called))
    number_ = static_cast<std::int64_t>(reinterpret_cast<const TransferFrame*>(regs[REG_RSP])->number);
  if (number_ == SYS_restart_syscall) number_ = timed.number >= 0 ? timed.number : number_from_code(rip);
  if (!may_issue_again(number_)) return;
  kind_ = Kind::kEndedByUs;
  time_out_known_ = timed.number == number_;
}

void InterruptedCall::go_on() {
  TimedCall& timed = t_timed_call;
  ++timed.stops;
  if (timed.number >= 0)
    timed.deadline_ns = monotonic_ns() + left_ns_;  // the stop does not count, nor does a restart
  if (kind_ == Kind::kNone) return;
  greg_t* regs = context_->uc_mcontext.gregs;
  if (program_signal_waits(context_, kind_ == Kind::kRestartedByKernel)) {
    if (kind_ == Kind::kRestartedByKernel) {
      regs[REG_RIP] += 2;
      regs[REG_RAX] = -EINTR;
    }
    return;
  }
  if (kind_ == Kind::kRestartedByKernel) return;
  if (kind_ == Kind::kCutShort) {
    transfer_rest();
  } else {
    regs[REG_RIP] -= 2;
    regs[REG_RAX] = number_;
  }
  if (!time_out_known_) return;
  const std::int64_t left_ns = std::max<std::int64_t>(left_ns_, 0);
  if (timed.socket.fd >= 0) {
    timed.shortened = true;
    set_time_out(timed.socket, std::max<std::int64_t>(left_ns, 1000));  // 0 would be for ever
  } else if (int reg = milliseconds_register(number_)) {
    regs[reg] = (left_ns + 999999) / 1000000;
  } else if (int slot = timespec_register(number_)) {
    timed.remaining = {left_ns / 1000000000, left_ns % 1000000000};
    regs[slot] = reinterpret_cast<greg_t>(&timed.remaining);
  }
}

void InterruptedCall::transfer_rest() {
  greg_t* regs = context_->uc_mcontext.gregs;
  const greg_t done = regs[REG_RAX];
  regs[REG_RSI] += done;
  regs[REG_RDX] -= done;
  regs[REG_RAX] = number_;
  if (regs[REG_RIP] == reinterpret_cast<greg_t>(shadowib_transfer_called)) {  // cut short before
    reinterpret_cast<TransferFrame*>(regs[REG_RSP])->done += static_cast<std::uint64_t>(done);
    regs[REG_RIP] -= 2;
    return;
  }
  regs[REG_RCX] = regs[REG_RIP];
  regs[REG_R11] = done;
  regs[REG_RIP] = reinterpret_cast<greg_t>(shadowib_go_on_transferring);
}

}  // namespace shadowib
