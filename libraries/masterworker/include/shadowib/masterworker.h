// shadowib/masterworker.h: typed task farms in C++20, over topc.h. Header only; link libshadowib-mw, or
// libshadowib-mw-seq for one process.
//
//   struct Squares {                                                // an Application
//     std::optional<int> next(const State&);                        // master: a task, or nothing
//     long work(const int&, const State&, mw::Task&);               // worker
//     mw::Action<int> check(const int&, const long&, const State&, const mw::Result&);  // master, once per round
//     void update(State&, const int&, const long&);                 // everywhere, after mw::update()
//   };
//   mw::run(application, state, argc, argv);
//
// for_each() and Session are simpler: their workers have no shared data that change. examples/masterworker/session.cc
// shows both.
//
// Inputs and outputs are trivially copyable, or strings and vectors of such; for others specialise Bytes. An
// exception out of work() arrives in check(): Result::error(). One out of next(), check() or update() ends the farm
// at once, and comes out of run() in the master. A worker never returns from run(): only the master does.
//
// An input or output has at most 2 GiB: a larger one is an std::length_error out of the function that returned it.
//
// Forks of the master work for any farm of the program. Guests of the job (topcc(1)) work for the first one only. A
// guest that gets no task says so, and ends with 3.
//
// Threads: all calls belong to the main thread. Errors of the library end the process with a message, as topc.h says.
// Source: topc.h; Cooperman, Ansel, Ma, "Adaptive Checkpointing for Master-Worker Style Parallelism", figure 2.
#pragma once

#include <topc.h>
#include <unistd.h>

#include <climits>
#include <concepts>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace shadowib::mw {

// How values become bytes. Specialise it for types of your own.
template <typename T>
struct Bytes {
  static_assert(std::is_trivially_copyable_v<T>, "specialise shadowib::mw::Bytes for this type");
  static void put(std::string& to, const T& value) {
    to.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  static T take(const char*& from, const char* end) {
    if (static_cast<std::size_t>(end - from) < sizeof(T)) throw std::runtime_error("a message is too short");
    T value;
    std::memcpy(&value, from, sizeof(value));
    from += sizeof(value);
    return value;
  }
};

template <typename T>
requires std::is_trivially_copyable_v<T>
struct Bytes<std::vector<T>> {
  static void put(std::string& to, const std::vector<T>& values) {
    Bytes<std::uint64_t>::put(to, values.size());
    to.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  }
  static std::vector<T> take(const char*& from, const char* end) {
    const std::uint64_t count = Bytes<std::uint64_t>::take(from, end);
    if (static_cast<std::size_t>(end - from) / sizeof(T) < count) throw std::runtime_error("a message is too short");
    std::vector<T> values(count);
    if (count != 0) std::memcpy(values.data(), from, count * sizeof(T));
    from += count * sizeof(T);
    return values;
  }
};

template <>
struct Bytes<std::string> {
  static void put(std::string& to, const std::string& text) {
    Bytes<std::uint64_t>::put(to, text.size());
    to += text;
  }
  static std::string take(const char*& from, const char* end) {
    const std::uint64_t count = Bytes<std::uint64_t>::take(from, end);
    if (static_cast<std::size_t>(end - from) < count) throw std::runtime_error("a message is too short");
    std::string text(from, count);
    from += count;
    return text;
  }
};

// A decision of check(). Made by the functions below.
template <typename Input>
struct Action {
  enum class Kind { kDone, kUpdate, kRedo, kContinue } kind = Kind::kDone;
  std::optional<Input> next;
};
struct Done {
  template <typename Input>
  operator Action<Input>() const {
    return {};
  }
};
struct Update {
  template <typename Input>
  operator Action<Input>() const {
    return {Action<Input>::Kind::kUpdate, std::nullopt};
  }
};
struct Redo {
  template <typename Input>
  operator Action<Input>() const {
    return {Action<Input>::Kind::kRedo, std::nullopt};
  }
};
inline Done done() { return {}; }      // the task is over
inline Update update() { return {}; }  // and update() is called everywhere
inline Redo redo() { return {}; }      // the same worker does it again
template <typename Input>
Action<Input> continue_with(Input next) {  // the same worker does another step
  return {Action<Input>::Kind::kContinue, std::move(next)};
}

// work()'s view of its task.
class Task {
 public:
  bool aborted() const { return TOPC_is_abort_pending() != 0; }  // return soon
  bool redo() const { return TOPC_is_REDO() != 0; }
  bool continuation() const { return TOPC_is_CONTINUATION() != 0; }
  // Private data of this worker, made when first asked for; one object per type.
  template <typename T>
  T& local() {
    static T object{};
    return object;
  }
};

// check()'s view of the result.
class Result {
 public:
  bool up_to_date() const { return TOPC_is_up_to_date() != 0; }
  bool redo() const { return TOPC_is_REDO() != 0; }
  // The text of an exception that left work(), or null. The output is then a default-made object.
  const std::string* error() const { return error_ ? &*error_ : nullptr; }
  explicit Result(std::optional<std::string> error) : error_(std::move(error)) {}

 private:
  std::optional<std::string> error_;
};

// Asks workers to end their present tasks soon. In check() only.
inline void abort_tasks() { TOPC_abort_tasks(); }

namespace detail {

template <typename T>
std::string bytes_of(const T& value) {
  std::string bytes(sizeof(std::uint64_t), '\0');  // a message's size goes with it
  Bytes<T>::put(bytes, value);
  const std::uint64_t size = bytes.size();
  std::memcpy(bytes.data(), &size, sizeof(size));
  return bytes;
}
inline const char* begin_of(const void* message, const char** end) {
  std::uint64_t size;
  std::memcpy(&size, message, sizeof(size));
  *end = static_cast<const char*>(message) + size;
  return static_cast<const char*>(message) + sizeof(size);
}
// Lengths of topc.h are int. Tests lower it.
inline std::size_t most_bytes = INT_MAX;
inline void check_length(const std::string& bytes) {
  if (bytes.size() > most_bytes)
    throw std::length_error("a task's input or output has " + std::to_string(bytes.size()) + " bytes; " +
                            std::to_string(most_bytes) + " are the limit");
}
inline TOPC_BUF message_of(const std::string& bytes) {
  check_length(bytes);
  return TOPC_MSG(const_cast<char*>(bytes.data()), static_cast<int>(bytes.size()));
}

// Callbacks of topc.h have no argument for an object: the running farm is here.
struct Hooks {
  std::function<TOPC_BUF()> next;
  std::function<TOPC_BUF(void*)> work;
  std::function<TOPC_ACTION(void*, void*)> check;
  std::function<void(void*, void*)> update;
  std::exception_ptr thrown;    // out of one of them, in the master
  unsigned long long done = 0;  // tasks, in a worker
};
inline Hooks& hooks() {
  static Hooks all;
  return all;
}
extern "C" void shadowib_mw_abandon(void);  // of the library: the farm is over at once, without its results

// An exception must not pass through the library: it would leave tables half changed. It ends the farm. rethrow()
// lets it out behind the end.
template <typename Value, typename Function>
Value kept(Value otherwise, Function function) {
  if (hooks().thrown != nullptr) return otherwise;
  try {
    return function();
  } catch (...) {
    hooks().thrown = std::current_exception();
    shadowib_mw_abandon();
    return otherwise;
  }
}
inline void rethrow() {
  if (std::exception_ptr thrown = std::exchange(hooks().thrown, nullptr)) std::rethrow_exception(std::move(thrown));
}

extern "C" {
inline TOPC_BUF shadowib_mw_next(void) {
  return kept(NOTASK, [] { return hooks().next(); });
}
inline TOPC_BUF shadowib_mw_work(void* input) { return ++hooks().done, hooks().work(input); }
inline TOPC_ACTION shadowib_mw_check(void* input, void* output) {
  return kept(NO_ACTION, [&] { return hooks().check(input, output); });
}
inline void shadowib_mw_update(void* input, void* output) {
  if (TOPC_is_master())
    kept(true, [&] { return hooks().update(input, output), true; });
  else  // a worker without the update is of no use, and another is made
    [&]() noexcept { hooks().update(input, output); }();
}
}

template <typename Input>
Input input_of(const void* message) {
  const char* end;
  const char* from = begin_of(message, &end);
  return Bytes<Input>::take(from, end);
}
template <typename Output>
Output output_of(const void* message, std::optional<std::string>* error) {
  const char* end;
  const char* from = begin_of(message, &end);
  if (Bytes<bool>::take(from, end)) {
    *error = Bytes<std::string>::take(from, end);
    return Output{};
  }
  return Bytes<Output>::take(from, end);
}

template <typename Output, typename Function>
TOPC_BUF worked(Function function) {
  std::string bytes(sizeof(std::uint64_t), '\0');
  try {
    const Output output = function();
    Bytes<bool>::put(bytes, false);
    Bytes<Output>::put(bytes, output);
    check_length(bytes);
  } catch (const std::exception& thrown) {
    bytes.resize(sizeof(std::uint64_t));
    Bytes<bool>::put(bytes, true);
    Bytes<std::string>::put(bytes, thrown.what());
  } catch (...) {
    bytes.resize(sizeof(std::uint64_t));
    Bytes<bool>::put(bytes, true);
    Bytes<std::string>::put(bytes, "an exception of an unknown type");
  }
  const std::uint64_t size = bytes.size();
  std::memcpy(bytes.data(), &size, sizeof(size));
  return message_of(bytes);
}

template <typename Input>
TOPC_ACTION action_of(const Action<Input>& action) {
  switch (action.kind) {
    case Action<Input>::Kind::kUpdate:
      return UPDATE;
    case Action<Input>::Kind::kRedo:
      return REDO;
    case Action<Input>::Kind::kContinue:
      return CONTINUATION(message_of(bytes_of(*action.next)));
    default:
      return NO_ACTION;
  }
}

inline bool& started() {
  static bool yes = false;
  return yes;
}
inline void start(int* argc, char*** argv) {
  if (std::exchange(started(), true)) return;
  TOPC_init(argc, argv);
}
// A worker that was started as a guest of the job, and has run the program from its beginning.
inline bool is_guest() {
  const char* guest = std::getenv("SHADOWIB_GUEST");
  return guest != nullptr && *guest != '\0' && std::strcmp(guest, "0") != 0;
}
// A worker's life ends with the farm: only the master goes on in the program. So a guest never comes to a later farm.
inline constexpr int kNoTask = 3;
inline void end_worker() {
  if (TOPC_is_master()) return;
  TOPC_finalize();
  const bool of_no_use = is_guest() && hooks().done == 0;
  if (of_no_use)
    std::fputs(
        "shadowib-mw: this guest ends without a task: it came when the program's first farm was over, or had none "
        "left. "
        "In a program over masterworker.h guests work for the first farm only\n",
        stderr);
  std::fflush(nullptr);
  ::_exit(of_no_use ? kNoTask : 0);
}

template <typename Function>
struct Signature;
template <typename Class, typename Out, typename In, typename State>
struct Signature<Out (Class::*)(const In&, const State&, Task&)> {
  using Input = In;
  using Output = Out;
};
template <typename Class, typename Out, typename In, typename State>
struct Signature<Out (Class::*)(const In&, const State&, Task&) const> {
  using Input = In;
  using Output = Out;
};

// A function object without shared data: Output work(const Input&).
template <typename Function>
struct PlainSignature : PlainSignature<decltype(&Function::operator())> {};
template <typename Out, typename In>
struct PlainSignature<Out (*)(const In&)> {
  using Input = In;
  using Output = Out;
};
template <typename Class, typename Out, typename In>
struct PlainSignature<Out (Class::*)(const In&)> : PlainSignature<Out (*)(const In&)> {};
template <typename Class, typename Out, typename In>
struct PlainSignature<Out (Class::*)(const In&) const> : PlainSignature<Out (*)(const In&)> {};

}  // namespace detail

// The --TOPC- words of a command line, for run(). Nothing is started before that. So a program can refuse its own
// words without a farm.
class Options {
 public:
  Options(int& argc, char** argv) {
    int left = 0;
    for (int i = 0; i < argc; ++i) {
      const bool ours = i != 0 && std::strncmp(argv[i], "--TOPC-", 7) == 0;
      if (ours || i == 0) words_.push_back(argv[i]);
      if (!ours) argv[left++] = argv[i];
    }
    argc = left;
    argv[left] = nullptr;
    words_.push_back(nullptr);
  }
  // Makes the farm's workers, as the first run() does. Only once.
  void start() {
    int count = static_cast<int>(words_.size()) - 1;
    char** words = words_.data();
    detail::start(&count, &words);
  }
  bool asks_for_help() const {
    for (const char* word : words_)
      if (word != nullptr && std::strcmp(word, "--TOPC-help") == 0) return true;
    return false;
  }

 private:
  std::vector<char*> words_;
};

// Takes them out of argv; the strings still belong to argv. With --TOPC-help it prints the options, and the process
// ends with 0.
inline Options take_options(int& argc, char** argv) {
  Options options(argc, argv);
  if (options.asks_for_help()) options.start();
  return options;
}

template <typename A>
using InputOf = typename detail::Signature<decltype(&A::work)>::Input;
template <typename A>
using OutputOf = typename detail::Signature<decltype(&A::work)>::Output;

template <typename A, typename State>
concept Application = requires(A a, State& changed, const State& state, const InputOf<A>& in, const OutputOf<A>& out,
                               Task& task, const Result& result) {
  { a.next(state) } -> std::convertible_to<std::optional<InputOf<A>>>;
  { a.work(in, state, task) } -> std::convertible_to<OutputOf<A>>;
  { a.check(in, out, state, result) } -> std::convertible_to<Action<InputOf<A>>>;
};

// Runs one farm to its end, and returns in the master. `state` is the shared data: equal in all processes if only
// update() changes it. argc and argv lose their --TOPC- options. May be called again: then the farm has other
// workers.
// An exception of next(), check() or update() ends the farm, and comes out of here. Tasks that are still out are
// dropped.
template <typename A, typename State>
requires Application<A, State>
void run(A& application, State& state);

template <typename A, typename State>
requires Application<A, State>
void run(A& application, State& state, int& argc, char**& argv) {
  detail::start(&argc, &argv);
  mw::run(application, state);  // and no run() of the program
}

// With the words of take_options().
template <typename A, typename State>
requires Application<A, State>
void run(A& application, State& state, Options& options) {
  options.start();
  mw::run(application, state);  // and no run() of the program
}

// Without options of a command line: those of $TOPC_OPTS and ~/.topcrc hold, or what an earlier farm has had.
template <typename A, typename State>
requires Application<A, State>
void run(A& application, State& state) {
  using Input = InputOf<A>;
  using Output = OutputOf<A>;
  detail::start(nullptr, nullptr);
  detail::Hooks& hooks = detail::hooks();
  hooks.next = [&]() -> TOPC_BUF {
    const std::optional<Input> input = application.next(std::as_const(state));
    return input ? detail::message_of(detail::bytes_of(*input)) : NOTASK;
  };
  hooks.work = [&](void* message) {
    return detail::worked<Output>([&] {
      Task task;
      return application.work(detail::input_of<Input>(message), std::as_const(state), task);
    });
  };
  hooks.check = [&](void* in, void* out) {
    std::optional<std::string> error;
    const Output output = detail::output_of<Output>(out, &error);
    const Action<Input> action =
        application.check(detail::input_of<Input>(in), output, std::as_const(state), Result(std::move(error)));
    return detail::action_of(action);
  };
  hooks.update = [&](void* in, void* out) {
    if constexpr (requires(const Input& input, const Output& output) { application.update(state, input, output); }) {
      std::optional<std::string> error;
      const Output output = detail::output_of<Output>(out, &error);
      application.update(state, detail::input_of<Input>(in), output);
    }
  };
  TOPC_master_slave_untyped(detail::shadowib_mw_next, detail::shadowib_mw_work, detail::shadowib_mw_check,
                            detail::shadowib_mw_update);
  detail::end_worker();
  detail::rethrow();
}

// Output work(const Input&) for each element, in workers. check(element, output) in the master, once for each, in any
// order. Elements are read one by one, as workers get free. Returns in the master, when all are checked.
// The first exception of work() comes out of here as a std::runtime_error, once all others are checked. One of
// check() or of the range comes out as it is. Nothing is checked after it.
template <typename Range, typename Work, typename Check>
void for_each(Range&& range, Work work, Check check) {
  using Input = typename detail::PlainSignature<Work>::Input;
  using Output = typename detail::PlainSignature<Work>::Output;
  struct {
    decltype(std::begin(range)) at;
    decltype(std::end(range)) end;
    Work& work_one;
    Check& check_one;
    std::optional<std::string> error;

    std::optional<Input> next(const bool&) {
      if (at == end) return std::nullopt;
      std::optional<Input> input(*at);
      ++at;
      return input;
    }
    Output work(const Input& input, const bool&, Task&) { return work_one(input); }
    Action<Input> check(const Input& input, const Output& output, const bool&, const Result& result) {
      if (result.error() == nullptr)
        check_one(input, output);
      else if (!error)
        error = *result.error();
      return done();
    }
  } each{std::begin(range), std::end(range), work, check, std::nullopt};
  bool none = false;
  mw::run(each, none);
  if (each.error) throw std::runtime_error(*each.error);
}

// A farm whose tasks arise in the master's own loops. Output work(const Input&) runs in workers. check(input, output)
// runs in the master, inside of submit(), wait() and finish(). One session at a time, and no run() or for_each()
// meanwhile. A worker leaves the program in here. The first exception of work() comes out of finish() as a
// std::runtime_error. One of check() ends the session, and comes out of the call that check() ran in. Tasks that are
// still out are dropped.
template <typename Work, typename Check>
class Session {
 public:
  using Input = typename detail::PlainSignature<Work>::Input;
  using Output = typename detail::PlainSignature<Work>::Output;

  Session(Work work, Check check) : work_(std::move(work)), check_(std::move(check)) {
    detail::start(nullptr, nullptr);
    detail::Hooks& hooks = detail::hooks();
    hooks.work = [this](void* message) {
      return detail::worked<Output>([&] { return work_(detail::input_of<Input>(message)); });
    };
    hooks.check = [this](void* in, void* out) {
      std::optional<std::string> error;
      const Output output = detail::output_of<Output>(out, &error);
      if (!error)
        check_(detail::input_of<Input>(in), output);
      else if (!error_)
        error_ = std::move(error);
      return NO_ACTION;
    };
    TOPC_raw_begin_untyped(detail::shadowib_mw_work, detail::shadowib_mw_check, nullptr);
    detail::end_worker();
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  // Waits for all results, as finish() does; what work() and check() have thrown is lost. While an exception leaves
  // the session's scope it waits for nothing.
  ~Session() {
    if (!ended_ && std::uncaught_exceptions() > exceptions_) detail::shadowib_mw_abandon();
    end();
    detail::hooks().thrown = nullptr;
  }

  // Hands out a task. Waits, and checks results, while no worker is free.
  void submit(const Input& input) {
    if (ended_) throw std::logic_error("submit() after the session's end");
    TOPC_raw_submit_task_input(detail::message_of(detail::bytes_of(input)));
    detail::end_worker();
    rethrow();
  }
  // Waits for a result and checks it. False: no task is outstanding.
  bool wait() {
    const bool was_one = TOPC_raw_wait_for_task_result() != 0;
    detail::end_worker();
    rethrow();
    return was_one;
  }
  // Waits for all results. The session is over.
  void finish() {
    end();
    rethrow();
    if (error_) throw std::runtime_error(*std::exchange(error_, std::nullopt));
  }

 private:
  void end() {
    if (std::exchange(ended_, true)) return;
    TOPC_raw_end_master_slave();
    detail::end_worker();
  }
  void rethrow() {
    if (detail::hooks().thrown != nullptr) end();
    detail::rethrow();
  }
  Work work_;
  Check check_;
  std::optional<std::string> error_;
  bool ended_ = false;
  const int exceptions_ = std::uncaught_exceptions();
};

// Ends the farm of this process. Call it in the master, once, after the last run().
inline void finish() { TOPC_finalize(); }

}  // namespace shadowib::mw

namespace mw = shadowib::mw;
