#include <cstdlib>

#include "hooks/agent/agent_state.h"

namespace shadowib {

static const std::string g_empty;

std::uint64_t field_number(const Fields& fields, const char* name) {
  auto it = fields.find(name);
  return it == fields.end() ? 0 : std::strtoull(it->second.c_str(), nullptr, 10);
}

const std::string& field_text(const Fields& fields, const char* name) {
  auto it = fields.find(name);
  return it == fields.end() ? g_empty : it->second;
}

Status status_from_fields(const Fields& fields) {
  return Status(static_cast<Code>(field_number(fields, "code")), static_cast<int>(field_number(fields, "errno")),
                field_text(fields, "text").c_str());
}

Fields fields_of_status(const Status& status) {
  return {{"code", std::to_string(static_cast<int>(status.code()))},
          {"errno", std::to_string(status.error())},
          {"text", status.text()}};
}

}  // namespace shadowib
