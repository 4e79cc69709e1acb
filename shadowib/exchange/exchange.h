// The exchange: how the processes of a job find each other. A small directory of keys with barriers.
//
// Opened by URI; `dir:PATH` is the embedded engine (files under PATH, mode 0700; one machine or a shared file
// system), `redis://HOST:PORT/PREFIX` a Redis server for jobs on many machines, `pmix:` a server that a parallel
// job's launcher has. An engine is listed in open(), and passes exchange_contract_test.cc.
//
// Keys: one to eight components of [A-Za-z0-9._-]{1,64}, but not "." or "..", joined by '/'. Values: any bytes, up to
// 64 MiB, replaced atomically: a reader sees the old or the new value, never a mixture. Nothing here takes the
// program's heap or locks beyond libc's system-call wrappers (engines inside libshadowib.so run while threads are
// stopped). Descriptors an engine keeps open are owned (base/descriptors.h): after a fork or a restart, where they
// are gone, an old Exchange is abandoned, not deleted. Thread-safe. Loss of the exchange shows as Code::kIo from the
// call that needed it; nothing else is affected.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shadowib/base/status.h"

namespace shadowib {

class Exchange {
 public:
  virtual ~Exchange() = default;

  // Sets key to value, replacing.
  Status publish(std::string_view key, std::string_view value);

  // Publishes a value that many members have in common, each under a key of its own. An engine may keep it once. A
  // watch may take it for the key's equal value from before a removal.
  Status publish_alike(std::string_view key, std::string_view value);

  // Publishes several values in their order, `alike` ones as publish_alike() does. An engine may send them together.
  // When it fails, some of them may have been published.
  struct Value {
    std::string key, value;
    bool alike = false;
  };
  Status publish_all(const std::vector<Value>& values);

  // values[i] is the value of keys[i]; found[i] tells whether there is one. A missing key is not an error.
  Status lookup(const std::vector<std::string>& keys, std::vector<std::string>* values, std::vector<bool>* found);

  // Creates key with value for exactly one caller in the job's life. kBusy if it exists.
  Status claim(std::string_view key, std::string_view value);

  // Removes key; fine if absent.
  Status remove(std::string_view key);

  // Names directly below prefix (components), sorted.
  Status list(std::string_view prefix, std::vector<std::string>* names);

  // Enters barrier `name` as `member` and waits until n distinct members have entered. kTimeout after timeout_ms;
  // kAborted as soon as key abort_key (if not empty) exists. A barrier name is used once.
  Status barrier(std::string_view name, std::string_view member, int n, int timeout_ms, std::string_view abort_key);

  // A barrier with what goes before and after it; an engine may do all in one request. Publishes `first` as
  // publish_all() does, enters and waits. Once the barrier is open, fills *look (if any) as the first
  // watch_and_lookup() of a token does. kTimeout, kAborted: `first` has been published. Other errors: values may have
  // been published, and `member` may have entered.
  struct Look {
    std::string prefix;
    std::vector<std::string> keys;
    std::uint64_t token = 0;
    std::vector<std::string> values;
    std::vector<bool> found;
  };
  Status barrier_beside(const std::vector<Value>& first, std::string_view name, std::string_view member, int n,
                        int timeout_ms, std::string_view abort_key, Look* look);

  // The members that have entered barrier `name` so far, sorted.
  Status entered(std::string_view name, std::vector<std::string>* members);

  // Waits until a key directly below prefix was published, claimed or removed since *token (an opaque counter; 0 at
  // first, which returns at once). Ends earlier if cancel_fd (if >= 0) becomes readable, or timeout_ms (< 0: none)
  // ran out (kTimeout). An idle waiter costs no CPU where the engine can notify. Spurious returns are allowed.
  Status watch(std::string_view prefix, std::uint64_t* token, int timeout_ms, int cancel_fd);

  // publish_all() of `first`, watch(), and then lookup() of keys, which took place also if this is kTimeout.
  Status watch_and_lookup(std::string_view prefix, std::uint64_t* token, int timeout_ms,
                          const std::vector<std::string>& keys, std::vector<std::string>* values,
                          std::vector<bool>* found, const std::vector<Value>& first = {}, int cancel_fd = -1);

  // Opens to the same; may hold a password.
  virtual const std::string& uri() const = 0;

  // Calls of the above so far: what work has cost, for the log and for tests.
  std::uint64_t operations() const { return operations_.load(std::memory_order_relaxed); }

  // Conveniences on lookup().
  Status get(std::string_view key, std::string* value, bool* found);

  // For callers without strings (abi/backend.h). errno_of a Status is EEXIST if it is kBusy, ENOENT if kNotFound,
  // else EIO. copy() puts at most `capacity` bytes of key's value to `value` and its whole size to *bytes. It returns
  // 0, EOVERFLOW if the value does not fit, ENOENT or EIO.
  static int errno_of(const Status& status);
  int copy(std::string_view key, void* value, std::size_t capacity, std::size_t* bytes);

  // Opens uri; creates what is missing if `create`. kUsage names the unknown scheme and the known ones.
  static Status open(const std::string& uri, bool create, std::unique_ptr<Exchange>* exchange);

  // A URI for people to read: no password in it.
  static std::string shown(const std::string& uri);

  // True if key has the form above.
  static bool valid_key(std::string_view key);

 protected:
  // How an operation ends that an engine has found in vain.
  static Status taken(std::string_view key);
  static Status given_up(std::string_view barrier, std::string_view abort_key);
  static Status incomplete(std::string_view barrier, int n, int timeout_ms);
  static Status unchanged(std::string_view prefix, int timeout_ms);

  // These do one part after the other. An engine may do them in one.
  virtual Status do_publish_all(const std::vector<Value>& values);
  virtual Status do_watch_and_lookup(std::string_view prefix, std::uint64_t* token, int timeout_ms,
                                     const std::vector<std::string>& keys, std::vector<std::string>* values,
                                     std::vector<bool>* found, const std::vector<Value>& first, int cancel_fd);
  virtual Status do_barrier_beside(const std::vector<Value>& first, std::string_view name, std::string_view member,
                                   int n, int timeout_ms, std::string_view abort_key, Look* look);

 private:
  // The work of an engine: keys are valid, values not too large, *values, *found and *names empty, there is a key to
  // look up and a value to publish, and names may be in any order.
  virtual Status do_publish(std::string_view key, std::string_view value) = 0;
  virtual Status do_publish_alike(std::string_view key, std::string_view value) { return do_publish(key, value); }
  virtual Status do_lookup(const std::vector<std::string>& keys, std::vector<std::string>* values,
                           std::vector<bool>* found) = 0;
  virtual Status do_claim(std::string_view key, std::string_view value) = 0;
  virtual Status do_remove(std::string_view key) = 0;
  virtual Status do_list(std::string_view prefix, std::vector<std::string>* names) = 0;
  virtual Status do_barrier(std::string_view name, std::string_view member, int n, int timeout_ms,
                            std::string_view abort_key) = 0;
  virtual Status do_entered(std::string_view name, std::vector<std::string>* members) = 0;
  virtual Status do_watch(std::string_view prefix, std::uint64_t* token, int timeout_ms, int cancel_fd) = 0;

  void count_operation() { operations_.fetch_add(1, std::memory_order_relaxed); }
  Status begin_put(std::string_view key, std::string_view value);
  Status begin_put_all(const std::vector<Value>& values);
  Status begin_barrier(std::string_view name, std::string_view member, std::string_view abort_key);
  Status begin_below(std::string_view prefix);
  static Status begin_lookup(const std::vector<std::string>& keys, std::vector<std::string>* values,
                             std::vector<bool>* found);

  std::atomic<std::uint64_t> operations_{0};
};

}  // namespace shadowib
