#include "hooks/job/job_directory.h"

#include <sys/random.h>
#include <sys/types.h>

#include <algorithm>
#include <cstdio>

namespace shadowib {
namespace {

constexpr std::size_t kMaxName = 64;
constexpr std::size_t kMaxProgram = 48;  // leaves room for the pid

bool valid_letter(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
         c == '-';
}

std::string below(std::string_view directory, const char* place) { return std::string(directory) + place; }

}  // namespace

bool valid_job_name(std::string_view job) {
  return !job.empty() && job.size() <= kMaxName && job[0] != '.' && job[0] != '-' &&
         std::all_of(job.begin(), job.end(), valid_letter);
}

std::string default_job_name(std::string_view program, int pid) {
  std::string name(program.substr(program.rfind('/') + 1));
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !valid_letter(c); }, '_');
  if (!valid_job_name(name.substr(0, kMaxProgram))) name = "job" + name;
  return name.substr(0, kMaxProgram) + "-" + std::to_string(pid);
}

std::string jobs_path(std::string_view directory) { return below(directory, "/jobs"); }
std::string sets_path(std::string_view directory) { return below(directory, "/sets"); }

JobPaths job_paths(std::string_view directory, std::string_view job) {
  const std::string top = jobs_path(directory) + "/" + std::string(job), alive = top + "/alive";
  return {.top = top,
          .key = top + "/key",
          .epoch = top + "/epoch",
          .exchange = top + "/exchange",
          .password = top + "/exchange-password",
          .alive = alive,
          .joining = alive + "/joining",
          .restart = alive + "/restart",
          .renewing = alive + "/renewing",
          .supervisor = top + "/supervisor",
          .started = top + "/started",
          .clusters = top + "/clusters"};
}

std::string alive_path(std::string_view directory, std::string_view job, std::string_view epoch,
                       std::string_view who) {
  std::string path = job_paths(directory, job).alive;
  path += '/', path += epoch, path += '.', path += who;
  return path;
}

std::string keepers_path(std::string_view directory, std::string_view job) {
  return job_paths(directory, job).top + "/keepers";
}

std::string keeper_lock_path(std::string_view directory, std::string_view job, std::string_view host) {
  std::string path = keepers_path(directory, job);
  path += '/', path += host, path += ".lock";
  return path;
}

std::string default_exchange(std::string_view directory, std::string_view job) {
  return "dir:" + job_paths(directory, job).top + "/x";
}

std::string new_epoch(std::uint32_t generation) { return "g" + std::to_string(generation) + "-" + random_hex(4); }

std::string random_hex(std::size_t bytes) {
  std::string text;
  for (std::size_t made = 0; made < bytes; ++made) {
    unsigned char random = 0;
    while (::getrandom(&random, 1, 0) != 1) {
    }
    text += "0123456789abcdef"[random >> 4], text += "0123456789abcdef"[random & 15];
  }
  return text;
}

std::string set_name(std::string_view job, std::uint32_t number) {
  char digits[16];
  std::snprintf(digits, sizeof(digits), ".%04u", number);
  return std::string(job) + digits;
}

bool parse_set_name(const std::string& name, std::string* job, std::uint32_t* number) {
  std::size_t dot = name.rfind('.');
  if (dot == std::string::npos) return false;
  std::string digits = name.substr(dot + 1);
  if (digits.size() < 4 || digits.size() > 9 || digits.find_first_not_of("0123456789") != std::string::npos)
    return false;
  *job = name.substr(0, dot);
  *number = static_cast<std::uint32_t>(std::stoul(digits));
  return valid_job_name(*job) && set_name(*job, *number) == name;
}

bool parse_hidden_name(const std::string& name, std::string* job, std::uint32_t* number) {
  if (name.empty() || name[0] != '.') return false;
  std::size_t dot = name.rfind('.');
  if (name.compare(dot, 9, ".staging-") != 0 && name.compare(dot, 10, ".removing-") != 0) return false;
  return dot > 1 && parse_set_name(name.substr(1, dot - 1), job, number);
}

std::string staging_name(std::string_view job, std::uint32_t number) {
  return "." + set_name(job, number) + ".staging-" + random_hex(4);
}

std::string removing_name(std::string_view set) { return "." + std::string(set) + ".removing-" + random_hex(4); }

}  // namespace shadowib
