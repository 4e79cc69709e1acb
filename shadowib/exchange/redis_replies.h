// Replies of a Redis server, taken from its bytes by hiredis' reader.
//
// Only the reader of hiredis is used, from an archive in which malloc and its like are turned to private memory
// (CMakeLists.txt). The connections of hiredis resolve names, allocate from the program's heap and raise SIGPIPE.
// Version 0.14 has no other way to set an allocator.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

struct redisReader;

namespace shadowib {

struct RedisReply {
  enum class Kind { kNil, kNumber, kText, kError, kList };
  Kind kind = Kind::kNil;
  long long number = 0;
  std::string text;  // of kText (bulk or status) and kError
  std::vector<std::unique_ptr<RedisReply>> items;

  bool is_error() const { return kind == Kind::kError; }
};

class RedisReplies {
 public:
  RedisReplies();
  ~RedisReplies();
  RedisReplies(const RedisReplies&) = delete;
  RedisReplies& operator=(const RedisReplies&) = delete;

  // Bytes as they have come. False: they are no replies, or there is no memory; nothing can be read any more.
  bool feed(std::string_view bytes);
  // The next whole reply; null if there is none yet. False as above.
  bool next(std::unique_ptr<RedisReply>* reply);

 private:
  redisReader* reader_;
};

}  // namespace shadowib
