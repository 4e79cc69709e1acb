// Connections to one server that outlive an operation: opening one takes longer than most operations.
#pragma once

#include <memory>

#include "shadowib/base/lock.h"
#include "shadowib/exchange/redis_connection.h"

namespace shadowib {

// Thread-safe.
class RedisPool {
 public:
  explicit RedisPool(const RedisPlace& place) : place_(place) {}
  ~RedisPool();
  RedisPool(const RedisPool&) = delete;
  RedisPool& operator=(const RedisPool&) = delete;

  // An idle one, else a new one.
  Status take(int patience_ms, std::unique_ptr<RedisConnection>* connection);
  void give_back(std::unique_ptr<RedisConnection> connection);

 private:
  static constexpr int kIdle = 4;
  const RedisPlace place_;
  SpinLock lock_;
  RedisConnection* idle_[kIdle] SHADOWIB_GUARDED_BY(lock_) = {};
};

// A connection for the length of one operation. It goes back to the idle ones if all went well.
class RedisLease {
 public:
  explicit RedisLease(RedisPool& pool) : pool_(pool) {}
  ~RedisLease() {
    if (connection_ != nullptr) pool_.give_back(std::move(connection_));
  }
  RedisLease(const RedisLease&) = delete;
  RedisLease& operator=(const RedisLease&) = delete;
  Status take(int patience_ms) { return pool_.take(patience_ms, &connection_); }
  void drop() { connection_.reset(); }
  RedisConnection* operator->() { return connection_.get(); }

 private:
  RedisPool& pool_;
  std::unique_ptr<RedisConnection> connection_;
};

}  // namespace shadowib
