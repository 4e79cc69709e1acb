#include "shadowib/exchange/redis_pool.h"

#include <utility>

namespace shadowib {

RedisPool::~RedisPool() {
  for (RedisConnection* connection : idle_) delete connection;
}

Status RedisPool::take(int patience_ms, std::unique_ptr<RedisConnection>* connection) {
  for (;;) {
    RedisConnection* idle = nullptr;
    {
      SpinGuard guard(lock_);
      for (RedisConnection*& slot : idle_)
        if (idle == nullptr) std::swap(idle, slot);
    }
    if (idle == nullptr) break;
    connection->reset(idle);
    if (!idle->stale()) return {};
    connection->reset();  // the server has hung up since
  }
  return RedisConnection::open(place_, patience_ms, connection);
}

void RedisPool::give_back(std::unique_ptr<RedisConnection> connection) {
  SpinGuard guard(lock_);
  for (RedisConnection*& slot : idle_)
    if (slot == nullptr) {
      slot = connection.release();
      return;
    }
}

}  // namespace shadowib
