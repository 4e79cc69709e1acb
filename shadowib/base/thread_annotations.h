// Clang's thread-safety attributes: a declaration names its lock, and the preset `clang` checks every use of it.
//
// gcc knows none of them and sees nothing here. Source: "Thread Safety Analysis", Clang's documentation.
#pragma once

#ifdef __clang__
#define SHADOWIB_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define SHADOWIB_THREAD_ATTRIBUTE(x)
#endif

// On a class: it is a lock; or it holds a lock from its constructor to its destructor.
#define SHADOWIB_CAPABILITY(name) SHADOWIB_THREAD_ATTRIBUTE(capability(name))
#define SHADOWIB_SCOPED_CAPABILITY SHADOWIB_THREAD_ATTRIBUTE(scoped_lockable)

// On a member or variable: touched with this lock only; or, of a pointer, its target is.
#define SHADOWIB_GUARDED_BY(lock) SHADOWIB_THREAD_ATTRIBUTE(guarded_by(lock))
#define SHADOWIB_PT_GUARDED_BY(lock) SHADOWIB_THREAD_ATTRIBUTE(pt_guarded_by(lock))

// On a function: its caller holds these locks; or does not.
#define SHADOWIB_REQUIRES(...) SHADOWIB_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define SHADOWIB_EXCLUDES(...) SHADOWIB_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))

// On a function: it takes these locks, gives them back, or takes them if it returns `value`.
#define SHADOWIB_ACQUIRE(...) SHADOWIB_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define SHADOWIB_RELEASE(...) SHADOWIB_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define SHADOWIB_TRY_ACQUIRE(value, ...) SHADOWIB_THREAD_ATTRIBUTE(try_acquire_capability(value, ##__VA_ARGS__))

// On a function: it returns a reference to this lock; or from here on the lock counts as held.
#define SHADOWIB_RETURN_CAPABILITY(lock) SHADOWIB_THREAD_ATTRIBUTE(lock_returned(lock))
#define SHADOWIB_ASSERT_CAPABILITY(lock) SHADOWIB_THREAD_ATTRIBUTE(assert_capability(lock))

// On a function: the analysis leaves it out. Its comment says why that is right.
#define SHADOWIB_NO_THREAD_SAFETY_ANALYSIS SHADOWIB_THREAD_ATTRIBUTE(no_thread_safety_analysis)
