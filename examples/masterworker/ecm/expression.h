// Integers as GMP-ECM's users write them: 2^128+1, 53!+1, (10^31-1)/9, 11#+1.
#pragma once

#include <gmpxx.h>

#include <string>

namespace factoring {

// The value of `text`: + - * . / % ^, n! and n!m, n# (the product of the primes up to n), groups in ( [ {, and a //
// that begins a comment. A division must leave no remainder. Throws std::invalid_argument with a message for people:
// what was expected at which character, or that the value has more than a million digits. Source: README of
// GMP-ECM 7.0.5, section 5. Reduced primorials and Phi(x,n) are left out.
mpz_class evaluate(const std::string& text);

}  // namespace factoring
