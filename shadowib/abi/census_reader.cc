#include "shadowib/abi/census_reader.h"

#include <cstdio>
#include <fstream>
#include <regex>
#include <sstream>

namespace shadowib::census {
namespace {

std::string output_of(const std::string& command) {
  std::string text;
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return text;
  char buffer[4096];
  while (std::size_t n = std::fread(buffer, 1, sizeof(buffer), pipe)) text.append(buffer, n);
  return ::pclose(pipe) == 0 ? text : std::string();
}

// One line of readelf -W --dyn-syms: "Num: Value Size Type Bind Vis Ndx Name[@[@]Version [(n)]]".
bool parse_symbol(const std::string& line, Symbol* symbol) {
  std::istringstream in(line);
  std::string number, value, size, type, bind, visibility, index, name;
  if (!(in >> number >> value >> size >> type >> bind >> visibility >> index >> name)) return false;
  if (number.back() != ':' || (type != "FUNC" && type != "OBJECT" && type != "NOTYPE" && type != "IFUNC"))
    return false;
  std::size_t at = name.find('@');
  symbol->name = name.substr(0, at);
  symbol->version = at == std::string::npos ? "" : name.substr(name.find_first_not_of('@', at));
  symbol->is_default = at != std::string::npos && name.compare(at, 2, "@@") == 0;
  symbol->defined = index != "UND";
  symbol->is_data = type == "OBJECT";
  return index != "ABS" && symbol->name.rfind("IBVERBS_", 0) != 0 && symbol->name != "SHADOWIB_1" &&
         symbol->name != "SHADOWIB_2";
}

}  // namespace

std::vector<Symbol> dynamic_symbols(const std::string& file) {
  std::istringstream lines(output_of(std::string(SHADOWIB_READELF " -W --dyn-syms '") + file + "'"));
  std::vector<Symbol> symbols;
  Symbol symbol;
  for (std::string line; std::getline(lines, line);)
    if (parse_symbol(line, &symbol)) symbols.push_back(symbol);
  return symbols;
}

std::set<std::string> function_slots(const std::string& header_text) {
  static const char* const kStructs[] = {
      "ibv_context_ops", "verbs_context", "ibv_qp_ex", "ibv_cq_ex", "ibv_wq", "ibv_dm",   "ibv_srq",     "ibv_cq",
      "ibv_qp",          "ibv_mr",        "ibv_pd",    "ibv_ah",    "ibv_mw", "ibv_flow", "ibv_counters"};
  std::string text = std::regex_replace(header_text, std::regex(R"(/\*([^*]|\*+[^*/])*\*+/)"), "");
  static const std::regex kPointer(R"(\(\s*\*\s*(\w+)\s*\)\s*\()");
  std::set<std::string> slots;
  for (const char* name : kStructs) {
    std::size_t start = text.find(std::string("\nstruct ") + name + " {");
    if (start == std::string::npos) continue;
    std::string body = text.substr(start, text.find("\n};", start) - start);
    for (std::sregex_iterator it(body.begin(), body.end(), kPointer), end; it != end; ++it)
      if ((*it)[1].str().rfind("ABI_placeholder", 0) != 0) slots.insert(std::string(name) + "." + (*it)[1].str());
  }
  return slots;
}

std::string read_text(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::set<std::string> census_symbols() {
  std::set<std::string> symbols;
#define CENSUS_FUNC(name, node, is_default, handling, convention, man) \
  symbols.insert(std::string(#name) + (is_default ? "@@" : "@") + node);
#include "census_table.inc"
#undef CENSUS_FUNC
  return symbols;
}

std::set<std::string> census_slots() {
  std::set<std::string> slots;
#define CENSUS_SLOT(id, type, member, handling, convention, man) slots.insert(#type "." #member);
#include "slot_table.inc"
#undef CENSUS_SLOT
  return slots;
}

}  // namespace shadowib::census
