#include "hooks/launcher/pmi_server.h"

#include <cstdlib>
#include <numeric>

#include "shadowib/base/log.h"

namespace shadowib {
namespace {

constexpr char kAll[] = "all";  // the set of all ranks (fence_set())

std::string word(const PmiWords& words, const char* name) {
  const auto at = words.find(name);
  return at != words.end() ? at->second : std::string();
}

// Their answers are the same whenever they are asked for.
bool is_constant(const std::string& command) {
  return command == "init" || command == "get_maxes" || command == "get_my_kvsname" || command == "get_appnum" ||
         command == "get_universe_size";
}

// As Hydra calls the answers to what only a launcher can do.
const char* foreign_answer(const std::string& command) {
  if (command == "spawn") return "spawn_result";
  if (command == "publish_name") return "publish_result";
  if (command == "unpublish_name") return "unpublish_result";
  if (command == "lookup_name") return "lookup_result";
  return nullptr;
}

std::string failure(const std::string& result, const std::string& why) {
  return "cmd=" + result + " rc=-1 msg=" + why + "\n";
}

}  // namespace

void note_pmi_answer(const PmiRequest& request, std::string_view line, PmiKnowledge* known, LauncherRank* own) {
  const PmiWords words = parse_pmi_words(line);
  const std::string rc = word(words, "rc");
  const bool right = rc.empty() || std::atoi(rc.c_str()) == 0;
  if (!right) return;
  if (is_constant(request.command)) known->constant[request.command] = line;
  if (request.command == "get") known->values[word(request.words, "key")] = word(words, "value");
  if (request.command != "put") return;
  SpinGuard guard(own->lock);
  own->committed_puts[word(request.words, "key")] = {0, word(request.words, "value")};
  own->committed = true;
}

bool is_pmi_barrier(const PmiRequest& request) {
  return request.command == "barrier_in" && request.words.empty();  // of all ranks; newer ones have groups, too
}

bool is_pmi_abort(const PmiRequest& request) { return request.command == "abort"; }

void count_pmi_barrier(LauncherRank* own) {
  SpinGuard guard(own->lock);
  ++own->fences[kAll];
}

Status PmiServer::tell_barrier(std::vector<std::uint32_t>* missing) {
  missing->resize(own_->size);
  std::iota(missing->begin(), missing->end(), 0u);
  return board_.publish_fence(kAll, own_->rank, own_->fences[kAll]);
}

Status PmiServer::look_at_barrier(std::vector<std::uint32_t>* missing) {
  return board_.look_for(kAll, own_->fences[kAll], missing);
}

bool PmiServer::is_own_space(const PmiWords& words) const { return word(words, "kvsname") == own_->name; }

bool PmiServer::is_too_long(const std::string& text, const char* maximum) const {
  const auto maxes = known_->constant.find("get_maxes");
  if (maxes == known_->constant.end()) return false;
  const std::string most = word(parse_pmi_words(maxes->second), maximum);
  return !most.empty() && text.size() >= std::strtoul(most.c_str(), nullptr, 10);  // they count the NUL
}

std::string PmiServer::put(const PmiWords& words) {
  const std::string key = word(words, "key"), value = word(words, "value");
  if (!is_own_space(words)) return failure("put_result", "kvs_" + word(words, "kvsname") + "_not_found");
  if (key.empty() || is_too_long(key, "keylen_max")) return failure("put_result", "invalid_length_of_key");
  if (is_too_long(value, "vallen_max")) return failure("put_result", "invalid_length_of_value");
  {
    SpinGuard guard(own_->lock);
    own_->committed_puts[key] = {0, value};
    own_->committed = true;
  }
  if (const Status status = board_.publish_puts(own_->rank, own_->committed_puts); !status.ok()) {
    log_line(LogLevel::kError, "rank %u cannot tell what it has put: %s", own_->rank, status.text());
    return failure("put_result", "exchange_failed");
  }
  return "cmd=put_result rc=0 msg=success\n";
}

std::string PmiServer::get(const PmiWords& words) {
  const std::string key = word(words, "key");
  const std::string missing = "cmd=get_result rc=-1 msg=key_" + key + "_not_found value=unknown\n";
  if (!is_own_space(words)) return failure("get_result", "kvs_" + word(words, "kvsname") + "_not_found");
  const auto found = [](const std::string& value) { return "cmd=get_result rc=0 msg=success value=" + value + "\n"; };
  if (const auto own = own_->committed_puts.find(key); own != own_->committed_puts.end())
    return found(own->second.bytes);
  if (const auto read = known_->values.find(key); read != known_->values.end()) return found(read->second);
  bool put = false;
  StoredValue value;
  if (const Status status = board_.find_put_of_any(own_->size, key, &put, &value); !status.ok()) {
    log_line(LogLevel::kError, "rank %u cannot read what others have put: %s", own_->rank, status.text());
    return failure("get_result", "exchange_failed");
  }
  if (!put) return missing;
  known_->values[key] = value.bytes;
  return found(value.bytes);
}

std::string PmiServer::finalize() {
  own_->connected = false;
  if (const Status status = board_.publish_done(own_->rank); !status.ok())
    log_line(LogLevel::kWarn, "cannot tell that rank %u has left: %s", own_->rank, status.text());
  return "cmd=finalize_ack\n";
}

std::string PmiServer::answer(const PmiRequest& request) {
  const std::string& command = request.command;
  if (command == "put") return put(request.words);
  if (command == "get") return get(request.words);
  if (is_pmi_barrier(request)) return "cmd=barrier_out\n";
  if (command == "finalize") return finalize();
  if (const auto known = known_->constant.find(command); known != known_->constant.end()) return known->second + "\n";
  if (const char* result = foreign_answer(command)) {
    log_line(LogLevel::kWarn, "PMI %s: the job was restarted without a launcher, and nobody else can do that",
             command.c_str());
    return failure(result, "restarted_without_a_launcher");
  }
  log_line(LogLevel::kWarn, "a request of PMI that shadowib does not know is refused: %.60s", command.c_str());
  return failure(command.empty() ? "error" : command + "_result", "unknown_request");
}

}  // namespace shadowib
