// ecm: factors integers by a task farm over GMP-ECM's library. See README.md, and `ecm --help`.
#include <getopt.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <stdexcept>

#include "expression.h"
#include "factoring.h"

namespace {

enum Exit { kFactored = 0, kFailed = 1, kUsage = 2, kLeft = 3 };

constexpr char kHelp[] =
    "Usage: ecm [OPTION]... [NUMBER]...\n"
    "Factors numbers, or expressions such as '2^128+1', by P-1, P+1 and ECM.\n"
    "\n"
    "  -f, --file FILE    numbers from FILE, one a line; - is the standard input\n"
    "  -d, --digits N     give up after curves for factors of N digits: 20, 25, ... 65 (65)\n"
    "      --b1 B1        curves with this bound alone, instead of GMP-ECM's table\n"
    "  -c, --curves N     and so many of them (with --b1; 100)\n"
    "      --ecm-only     no P-1 and P+1\n"
    "  -s, --seed N       of all curves (1)\n"
    "  -q, --quiet        results only\n"
    "  -h, --help         prints this\n"
    "      --TOPC-help    prints the options of task farms, as --TOPC-num-slaves=N\n"
    "\n"
    "Exit codes: 0 all is factored; 1 a failure; 2 wrong usage or input; 3 composite parts are left.\n";

[[noreturn]] void refuse(const std::string& text) {
  std::fprintf(stderr, "ecm: %s\n", text.c_str());
  std::exit(kUsage);
}

double positive(const char* option, const char* text, double most) {
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  if (*text == '\0' || *end != '\0' || !(value >= 1 && value <= most))
    refuse(std::string(option) + " " + text + ": a number from 1 to " + std::to_string(static_cast<long>(most)) +
           " is needed");
  return value;
}

struct Request {
  factoring::Plan plan;
  std::vector<std::string> expressions;
};

void read_file(const std::string& path, std::vector<std::string>& to) {
  std::ifstream file;
  std::istream& in = path == "-" ? std::cin : file;
  if (path != "-") {
    file.open(path);
    if (!file) refuse(path + ": " + std::strerror(errno));
  }
  std::string line;
  while (std::getline(in, line)) {
    line.erase(std::min(line.find("//"), line.size()));
    line.erase(std::remove_if(line.begin(), line.end(), [](unsigned char c) { return std::isspace(c) != 0; }),
               line.end());
    if (!line.empty()) to.push_back(line);
  }
  if (in.bad()) refuse(path + ": " + std::strerror(errno));
}

Request read_options(int argc, char** argv) {
  enum { kB1 = 256, kEcmOnly };
  const option options[] = {{"file", required_argument, nullptr, 'f'},
                            {"digits", required_argument, nullptr, 'd'},
                            {"b1", required_argument, nullptr, kB1},
                            {"curves", required_argument, nullptr, 'c'},
                            {"ecm-only", no_argument, nullptr, kEcmOnly},
                            {"seed", required_argument, nullptr, 's'},
                            {"quiet", no_argument, nullptr, 'q'},
                            {"help", no_argument, nullptr, 'h'},
                            {nullptr, 0, nullptr, 0}};
  Request request;
  double digits = 65, b1 = 0, curves = 0;
  for (int word; (word = getopt_long(argc, argv, "f:d:c:s:qh", options, nullptr)) != -1;) {
    switch (word) {
      case 'f':
        read_file(optarg, request.expressions);
        break;
      case 'd':
        digits = positive("--digits", optarg, 65);
        break;
      case kB1:
        b1 = positive("--b1", optarg, 1e12);
        break;
      case 'c':
        curves = positive("--curves", optarg, 1e9);
        break;
      case kEcmOnly:
        request.plan.all_methods = false;
        break;
      case 's':
        request.plan.seed = static_cast<std::uint64_t>(positive("--seed", optarg, 1e15));
        break;
      case 'q':
        request.plan.quiet = true;
        break;
      case 'h':
        std::fputs(kHelp, stdout);
        std::exit(0);
      default:
        refuse("see ecm --help");
    }
  }
  request.expressions.insert(request.expressions.end(), argv + optind, argv + argc);
  if (request.expressions.empty()) refuse("no numbers; see ecm --help");
  if (curves != 0 && b1 == 0) refuse("--curves needs --b1");
  std::vector<factoring::Level>& levels = request.plan.levels;
  if (b1 != 0)
    levels = {{0, b1, static_cast<unsigned>(curves != 0 ? curves : 100)}};
  else
    levels.erase(std::remove_if(levels.begin() + 1, levels.end(), [&](auto& level) { return level.digits > digits; }),
                 levels.end());
  return request;
}

factoring::State read_numbers(const std::vector<std::string>& expressions) {
  factoring::State state;
  for (const std::string& expression : expressions) {
    try {
      const mpz_class value = factoring::evaluate(expression);
      if (value < 2) refuse("'" + expression + "': it is below 2");
      state.numbers.emplace_back(expression, value);
    } catch (const std::invalid_argument& wrong) {
      refuse("'" + expression + "': " + wrong.what());
    }
  }
  return state;
}

}  // namespace

int main(int argc, char** argv) {
  mw::Options farm_options = mw::take_options(argc, argv);  // --TOPC-...; the others are for us
  const Request request = read_options(argc, argv);
  factoring::State state = read_numbers(request.expressions);
  factoring::Factoring farm(request.plan);
  mw::run(farm, state, farm_options);
  farm.report(state, true);
  mw::finish();
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    std::fprintf(stderr, "ecm: the standard output cannot be written: %s\n", std::strerror(errno));
    return kFailed;
  }
  if (state.unfinished() == 0) return kFactored;
  return farm.failures() != 0 ? kFailed : kLeft;
}
