#include "hooks/store/tests/forgetful_files.h"

#include <cerrno>

namespace shadowib {

ForgetfulFiles::ForgetfulFiles() : root_(std::make_shared<Node>()) { root_->directory = true; }

ForgetfulFiles::NodePointer ForgetfulFiles::find(const std::string& path) const {
  NodePointer at = root_;
  for (std::size_t begin = 1; at != nullptr && begin < path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const auto found = at->names.find(path.substr(begin, end - begin));
    at = found == at->names.end() ? nullptr : found->second;
    begin = end + 1;
  }
  return at;
}

ForgetfulFiles::NodePointer ForgetfulFiles::parent_of(const std::string& path, std::string* name) const {
  const std::size_t slash = path.rfind('/');
  *name = path.substr(slash + 1);
  return find(path.substr(0, slash));
}

int ForgetfulFiles::add(const std::string& path, NodePointer node) {
  std::string name;
  const NodePointer parent = parent_of(path, &name);
  if (parent == nullptr) return ENOENT;
  if (parent->names.contains(name)) return EEXIST;
  if (!may_change()) return EIO;
  parent->names[name] = std::move(node);
  return 0;
}

int ForgetfulFiles::make_directory(const std::string& path) {
  auto node = std::make_shared<Node>();
  node->directory = true;
  return add(path, std::move(node));
}

int ForgetfulFiles::check_directory(const std::string& path) {
  const NodePointer node = find(path);
  return node == nullptr ? ENOENT : node->directory ? 0 : ENOTDIR;
}

int ForgetfulFiles::write_new(const std::string& path, std::string_view content) {
  auto node = std::make_shared<Node>();
  node->content = content;
  return add(path, std::move(node));
}

int ForgetfulFiles::read(const std::string& path, std::string* content) {
  const NodePointer node = find(path);
  if (node == nullptr) return ENOENT;
  *content = node->content;
  return 0;
}

int ForgetfulFiles::open(const std::string&, int*) { return ENOTSUP; }

int ForgetfulFiles::sync(const std::string& path, std::uint64_t* bytes) {
  const NodePointer node = find(path);
  if (node == nullptr) return ENOENT;
  if (!may_change()) return EIO;
  node->kept_content = node->content;
  node->kept_names = node->names;
  if (bytes != nullptr) *bytes = node->content.size();
  return 0;
}

int ForgetfulFiles::rename(const std::string& from, const std::string& to) {
  std::string old_name, new_name;
  const NodePointer old_parent = parent_of(from, &old_name), new_parent = parent_of(to, &new_name);
  if (old_parent == nullptr || new_parent == nullptr || !old_parent->names.contains(old_name)) return ENOENT;
  if (!may_change()) return EIO;
  new_parent->names[new_name] = old_parent->names[old_name];
  old_parent->names.erase(old_name);
  return 0;
}

int ForgetfulFiles::rename_if_absent(const std::string& from, const std::string& to) {
  return find(to) != nullptr ? EEXIST : rename(from, to);
}

int ForgetfulFiles::remove_all(const std::string& path) {
  std::string name;
  const NodePointer parent = parent_of(path, &name);
  if (parent == nullptr) return 0;
  if (!may_change()) return EIO;
  parent->names.erase(name);
  return 0;
}

int ForgetfulFiles::list(const std::string& path, std::vector<std::string>* names) {
  const NodePointer node = find(path);
  names->clear();
  if (node == nullptr) return ENOENT;
  for (const auto& [name, entry] : node->names) names->push_back(name);
  return 0;
}

void ForgetfulFiles::forget(Node& node, Names names) {
  node.content = node.kept_content;
  if (names == Names::kForgotten) node.names = node.kept_names;
  for (const auto& [name, entry] : node.names) forget(*entry, names);
  node.kept_names = node.names;
}

void ForgetfulFiles::lose_power(Names names) {
  left_ = -1;
  forget(*root_, names);
}

}  // namespace shadowib
