// Hosts on a command line, and command lines for a remote shell.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace command_line {

struct Host {
  std::string name;
  int slots = 1;
  std::string architecture;  // of portable programs that it runs; "": its own
};

// "a:2,b,c:2:aarch64" as hosts; empty *hosts and a text that says why if it is none.
std::string parse_hosts(const std::string& text, std::vector<Host>* hosts);
// And back: "a:2,b:1,c:2:aarch64".
std::string hosts_text(const std::vector<Host>& hosts);

// One word of a shell's command line.
std::string in_quotes(const std::string& word);

// The line that runs `words` on another host, in the same directory, with the variables here for which
// `is_forwarded` is true.
std::string line_for_host(const std::vector<std::string>& words,
                          const std::function<bool(const std::string&)>& is_forwarded);

// The words that run `line` on `host` by the remote shell `shell`, as "ssh -4". It may have options.
std::vector<std::string> words_for_host(const std::string& shell, const std::string& host, const std::string& line);

}  // namespace command_line
