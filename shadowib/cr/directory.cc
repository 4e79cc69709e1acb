#include "shadowib/cr/directory.h"

#include <cstdio>
#include <string_view>

#include "hooks/agent.h"
#include "shadowib/cr/arrays.h"

namespace shadowib {
std::string job_key(const std::string& rest) { return std::string(job_info().epoch) + "/" + rest; }

std::string hex(const ibv_gid& gid) {
  char text[33];
  for (int i = 0; i < 16; ++i) std::snprintf(text + 2 * i, 3, "%02x", gid.raw[i]);
  return text;
}

std::string address_key(VirtualLid lid) { return job_key("at/lid/" + std::to_string(lid.value)); }
std::string address_key(const ibv_gid& gid) { return job_key("at/gid/" + hex(gid)); }

std::string source_key(const SourceAddress& from) {
  return job_key("source/" + (from.lid != 0 ? std::to_string(from.lid) : hex(from.gid)) + "/" +
                 std::to_string(from.qp_num));
}

std::string late_key(const char* kind, std::uint32_t member, std::uint32_t pd, std::uint32_t id) {
  return job_key("late/" + std::to_string(member) + "/" + kind + "/" + std::to_string(pd) + "/" + std::to_string(id));
}

std::string late_number_key(const char* kind, std::uint32_t member, std::uint32_t number) {
  return job_key("late/" + std::to_string(member) + "/" + kind + "/" + std::to_string(number));
}

std::string encode_directory(const Directory& directory) {
  std::string out;
  put_array(&out, directory.ports);
  put_array(&out, directory.qps);
  put_array(&out, directory.srqs);
  put_array(&out, directory.keys);
  put_array(&out, directory.windows);
  return out;
}

bool decode_directory(const std::string& text, Directory* directory) {
  std::string_view in(text);
  return take_array(&in, &directory->ports) && take_array(&in, &directory->qps) &&
         take_array(&in, &directory->srqs) && take_array(&in, &directory->keys) &&
         take_array(&in, &directory->windows) && in.empty();
}

}  // namespace shadowib
