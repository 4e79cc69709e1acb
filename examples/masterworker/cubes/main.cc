// cubes: cube and conquer by a task farm over CaDiCaL. See README.md, and `cubes --help`.
#include <getopt.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <new>
#include <stdexcept>

#include "conquest.h"

namespace {

enum Exit { kFailed = 1, kUsage = 2 };

constexpr char kHelp[] =
    "Usage: cubes [OPTION]... FILE\n"
    "Tells whether the formula in FILE (DIMACS, or iCNF with cubes; - is the standard input) can be satisfied.\n"
    "\n"
    "  -a, --cubes FILE    cubes from FILE, lines 'a 1 -2 0' as march_cu writes them\n"
    "  -n, --depth N       else up to 2^N cubes by CaDiCaL's lookahead (6)\n"
    "  -c, --conflicts N   a cube with more conflicts is split (20000)\n"
    "      --exit-zero     exit with 0 after either answer\n"
    "  -q, --quiet         no comments\n"
    "  -h, --help          prints this\n"
    "      --TOPC-help     prints the options of task farms, as --TOPC-num-slaves=N\n"
    "\n"
    "Prints 's SATISFIABLE' and a model, 's UNSATISFIABLE', or after a failure 's UNKNOWN'.\n"
    "Exit codes: 10 satisfiable; 20 unsatisfiable; 1 a failure; 2 wrong usage or input.\n";

struct Request {
  std::string formula, cubes;
  int depth = 6;
  bool exit_zero = false;
  cubes::Plan plan;
};

[[noreturn]] void refuse(const std::string& text) {
  std::fprintf(stderr, "cubes: %s\n", text.c_str());
  std::exit(kUsage);
}

long number(const char* option, const char* text, long least, long most) {
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*text == '\0' || *end != '\0' || value < least || value > most)
    refuse(std::string(option) + " " + text + ": a number from " + std::to_string(least) + " to " +
           std::to_string(most) + " is needed");
  return value;
}

Request read_options(int argc, char** argv) {
  enum { kExitZero = 256 };
  const option options[] = {{"cubes", required_argument, nullptr, 'a'},
                            {"depth", required_argument, nullptr, 'n'},
                            {"conflicts", required_argument, nullptr, 'c'},
                            {"exit-zero", no_argument, nullptr, kExitZero},
                            {"quiet", no_argument, nullptr, 'q'},
                            {"help", no_argument, nullptr, 'h'},
                            {nullptr, 0, nullptr, 0}};
  Request request;
  for (int word; (word = getopt_long(argc, argv, "a:n:c:qh", options, nullptr)) != -1;) {
    switch (word) {
      case 'a':
        request.cubes = optarg;
        break;
      case 'n':
        request.depth = static_cast<int>(number("--depth", optarg, 0, 20));
        break;
      case 'c':
        request.plan.conflicts = number("--conflicts", optarg, 1, 2'000'000'000);
        break;
      case kExitZero:
        request.exit_zero = true;
        break;
      case 'q':
        request.plan.quiet = true;
        break;
      case 'h':
        std::fputs(kHelp, stdout);
        std::exit(0);
      default:
        refuse("see cubes --help");
    }
  }
  if (argc - optind != 1) refuse(argc == optind ? "no formula; see cubes --help" : "one formula at a time");
  request.formula = argv[optind];
  return request;
}

template <typename Read>
auto read(const std::string& path, Read reader) {
  std::ifstream file;
  if (path != "-") {
    file.open(path);
    if (!file) refuse(path + ": " + std::strerror(errno));
  }
  try {
    return reader(path == "-" ? std::cin : file);
  } catch (const std::runtime_error& wrong) {
    refuse(path + ": " + wrong.what());
  }
}

cubes::State read_state(const Request& request) {
  cubes::Formula formula = read(request.formula, [](std::istream& in) { return cubes::read_formula(in); });
  if (!request.plan.quiet)
    std::printf("c %s: %d variables, %zu clauses\n", request.formula.c_str(), formula.variables, formula.clauses);
  std::vector<cubes::Literals> cubes = formula.cubes;
  if (!request.cubes.empty())
    cubes = read(request.cubes, [&](std::istream& in) { return cubes::read_cubes(in, formula.variables); });
  const bool given = !cubes.empty();
  if (!given) cubes = cubes::look_ahead(formula, request.depth);
  if (!request.plan.quiet) std::printf("c %zu cubes %s\n", cubes.size(), given ? "from the file" : "by lookahead");
  std::fflush(stdout);
  return cubes::State(std::move(formula), std::move(cubes));
}

void print_model(const std::vector<signed char>& model) {
  std::string line = "v";
  for (std::size_t v = 1; v <= model.size(); ++v) {
    const std::string word =
        " " + (v == model.size() ? std::string("0") : (model[v] > 0 ? "" : "-") + std::to_string(v));
    if (line.size() + word.size() > 78) {
      std::puts(line.c_str());
      line = "v";
    }
    line += word;
  }
  std::puts(line.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  mw::Options farm_options = mw::take_options(argc, argv);  // --TOPC-...; the others are for us
  const Request request = read_options(argc, argv);
  cubes::State state = [&] {
    try {
      return read_state(request);
    } catch (const std::bad_alloc&) {
      std::fprintf(stderr, "cubes: there is too little memory for this formula\n");
      std::exit(kFailed);
    }
  }();
  cubes::Conquest conquest(request.plan, state);
  mw::run(conquest, state, farm_options);
  mw::finish();

  conquest.say(state);
  const int status = conquest.status();
  std::puts(status == cubes::kSatisfiable     ? "s SATISFIABLE"
            : status == cubes::kUnsatisfiable ? "s UNSATISFIABLE"
                                              : "s UNKNOWN");
  if (status == cubes::kSatisfiable) print_model(conquest.model());
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    std::fprintf(stderr, "cubes: the standard output cannot be written: %s\n", std::strerror(errno));
    return kFailed;
  }
  if (status == cubes::kUnknown) return kFailed;
  return request.exit_zero ? 0 : status;
}
