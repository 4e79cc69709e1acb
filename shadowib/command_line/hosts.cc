#include "shadowib/command_line/hosts.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "shadowib/command_line/architecture.h"

namespace command_line {

std::string parse_hosts(const std::string& text, std::vector<Host>* hosts) {
  hosts->clear();
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string word = text.substr(at, end - at);
    at = end + 1;
    Host host{word, 1, {}};
    if (const std::size_t colon = word.rfind(':');
        colon != std::string::npos && is_architecture(word.substr(colon + 1))) {
      host.architecture = word.substr(colon + 1);
      host.name = word.substr(0, colon);
    }
    if (const std::size_t colon = host.name.rfind(':'); colon != std::string::npos) {
      const std::string slots = host.name.substr(colon + 1);
      host.name.resize(colon);
      const bool is_number = !slots.empty() && slots.size() <= 4 &&
                             std::all_of(slots.begin(), slots.end(), [](char c) { return c >= '0' && c <= '9'; });
      host.slots = is_number ? std::stoi(slots) : 0;
    }
    if (host.name.empty() || host.name[0] == '-' || host.slots < 1) {
      hosts->clear();
      return "--hosts: '" + word + "' is no HOST:SLOTS; write a:2,b:2";
    }
    hosts->push_back(host);
  }
  return {};
}

std::string hosts_text(const std::vector<Host>& hosts) {
  std::string text;
  for (const Host& host : hosts)
    text += (text.empty() ? "" : ",") + host.name + ":" + std::to_string(host.slots) +
            (host.architecture.empty() ? "" : ":" + host.architecture);
  return text;
}

std::string in_quotes(const std::string& word) {
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::string line_for_host(const std::vector<std::string>& words,
                          const std::function<bool(const std::string&)>& is_forwarded) {
  std::error_code error;
  std::string line = "cd " + in_quotes(std::filesystem::current_path(error).string()) + " && exec env";
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    if (is_forwarded(text.substr(0, text.find('=')))) line += " " + in_quotes(text);
  }
  for (const std::string& word : words) line += " " + in_quotes(word);
  return line;
}

std::vector<std::string> words_for_host(const std::string& shell, const std::string& host, const std::string& line) {
  return {"/bin/sh", "-c", "exec " + shell + " \"$@\"", "sh", host, line};
}

}  // namespace command_line
