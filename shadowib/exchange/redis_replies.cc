#include "shadowib/exchange/redis_replies.h"

#include <hiredis/read.h>

#include <algorithm>
#include <cstring>

#include "shadowib/base/arena.h"

// What hiredis calls in place of malloc and its like.
extern "C" {
void* shadowib_hiredis_malloc(std::size_t bytes);
void* shadowib_hiredis_calloc(std::size_t count, std::size_t bytes);
void* shadowib_hiredis_realloc(void* memory, std::size_t bytes);
void shadowib_hiredis_free(void* memory);
}

namespace {

constexpr std::size_t kHeader = 16;
constexpr std::size_t kGrowsBySteps = 1u << 20;

std::size_t& capacity_of(void* memory) {
  return *reinterpret_cast<std::size_t*>(static_cast<char*>(memory) - kHeader);
}

}  // namespace

// A buffer for a large value grows in steps of 1 MiB, each of which would copy all of it.
void* shadowib_hiredis_malloc(std::size_t bytes) {
  if (bytes >= SIZE_MAX / 4) return nullptr;
  std::size_t capacity = bytes;
  if (bytes > kGrowsBySteps)
    for (capacity = kGrowsBySteps; capacity < bytes;) capacity *= 2;
  auto* block = static_cast<char*>(shadowib::arena_allocate(capacity + kHeader));
  if (block == nullptr) return nullptr;
  capacity_of(block + kHeader) = capacity;
  return block + kHeader;
}

void* shadowib_hiredis_calloc(std::size_t count, std::size_t bytes) {
  if (bytes != 0 && count > SIZE_MAX / bytes) return nullptr;
  return shadowib_hiredis_malloc(count * bytes);  // the arena's memory is zeroed
}

void* shadowib_hiredis_realloc(void* memory, std::size_t bytes) {
  if (memory == nullptr) return shadowib_hiredis_malloc(bytes);
  const std::size_t capacity = capacity_of(memory);
  if (bytes <= capacity) return memory;
  void* larger = shadowib_hiredis_malloc(bytes);
  if (larger == nullptr) return nullptr;
  std::memcpy(larger, memory, std::min(bytes, capacity));
  shadowib_hiredis_free(memory);
  return larger;
}

void shadowib_hiredis_free(void* memory) {
  if (memory != nullptr) shadowib::arena_free(static_cast<char*>(memory) - kHeader);
}

namespace shadowib {
namespace {

// hiredis tells of an array before its elements, and keeps what is returned as their parent.
RedisReply* place(const redisReadTask* task, RedisReply::Kind kind) {
  auto reply = std::make_unique<RedisReply>();
  reply->kind = kind;
  if (task->parent == nullptr) return reply.release();
  auto* list = static_cast<RedisReply*>(task->parent->obj);
  list->items.push_back(std::move(reply));
  return list->items.back().get();
}

void* create_string(const redisReadTask* task, char* text, std::size_t length) {
  RedisReply* reply =
      place(task, task->type == REDIS_REPLY_ERROR ? RedisReply::Kind::kError : RedisReply::Kind::kText);
  reply->text.assign(text, length);
  return reply;
}

void* create_number(const redisReadTask* task, long long number) {
  RedisReply* reply = place(task, RedisReply::Kind::kNumber);
  reply->number = number;
  return reply;
}

void* create_list(const redisReadTask* task, int) { return place(task, RedisReply::Kind::kList); }
void* create_nil(const redisReadTask* task) { return place(task, RedisReply::Kind::kNil); }
void free_reply(void* reply) { delete static_cast<RedisReply*>(reply); }

redisReplyObjectFunctions g_functions = {create_string, create_list, create_number, create_nil, free_reply};

}  // namespace

RedisReplies::RedisReplies() : reader_(redisReaderCreateWithFunctions(&g_functions)) {}

RedisReplies::~RedisReplies() {
  if (reader_ != nullptr) redisReaderFree(reader_);
}

bool RedisReplies::feed(std::string_view bytes) {
  return reader_ != nullptr && redisReaderFeed(reader_, bytes.data(), bytes.size()) == 0;
}

bool RedisReplies::next(std::unique_ptr<RedisReply>* reply) {
  void* whole = nullptr;
  reply->reset();
  if (reader_ == nullptr || redisReaderGetReply(reader_, &whole) != 0) return false;
  reply->reset(static_cast<RedisReply*>(whole));
  return true;
}

}  // namespace shadowib
