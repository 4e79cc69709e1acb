#include "perftest/fedsim/report.h"

#include <algorithm>
#include <cmath>

namespace shadowib::fedsim {
namespace {

template <typename T>
Json list_of(const std::vector<T>& values) {
  Json list = Json::array();
  for (const T& value : values) list.push_back(value);
  return list;
}

Json mean_of(const std::vector<const Json*>& values) {
  const double count = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const Json* value : values) sum += value->get<double>();
  for (const Json* value : values) squares += std::pow(value->get<double>() - sum / count, 2);
  return Json{{"mean", sum / count}, {"error", count > 1 ? std::sqrt(squares / (count - 1) / count) : 0.0}};
}

Json combine(const std::vector<const Json*>& values) {
  const Json& first = *values.front();
  if (first.is_number()) return mean_of(values);
  if (first.is_object()) {
    Json json = Json::object();
    for (const auto& [name, member] : first.items()) {
      std::vector<const Json*> members;
      for (const Json* value : values) members.push_back(&(*value)[name]);
      json[name] = combine(members);
    }
    return json;
  }
  if (!first.is_array()) return first;
  std::size_t size = first.size();
  for (const Json* value : values) size = std::min(size, value->size());
  Json json = Json::array();
  for (std::size_t i = 0; i < size; ++i) {
    std::vector<const Json*> elements;
    for (const Json* value : values) elements.push_back(&*(value->begin() + static_cast<std::ptrdiff_t>(i)));
    json.push_back(combine(elements));
  }
  return json;
}

}  // namespace

Json encode_result(const SimulationResult& result) {
  Json messages = Json::array(), collections = Json::array();
  for (const auto& row : result.messages) messages.push_back(list_of(row));
  for (const auto& collection : result.collections)
    collections.push_back(Json{{"before", list_of(collection.before)}, {"after", list_of(collection.after)}});
  return Json{{"messages", messages},
              {"forced", list_of(result.forced)},
              {"unforced", list_of(result.unforced)},
              {"collections", collections},
              {"most_stored", list_of(result.most_stored)},
              {"most_logged", list_of(result.most_logged)},
              {"most_logged_by_a_node", list_of(result.most_node_logged)},
              {"protocol_messages_inside", result.protocol_messages_inside},
              {"protocol_messages_between", result.protocol_messages_between},
              {"delivered", result.delivered},
              {"recoveries", result.recoveries},
              {"clusters_back", result.clusters_back},
              {"lost_s", result.lost_s},
              {"resent", result.resent},
              {"suppositions", result.suppositions},
              {"supposed_back", result.supposed_back},
              {"supposed_lost_s", result.supposed_lost_s}};
}

Json summarize(const std::vector<Json>& results) {
  std::vector<const Json*> all;
  for (const Json& result : results) all.push_back(&result);
  return all.empty() ? Json() : combine(all);
}

}  // namespace shadowib::fedsim
