/* Included by shadowib-c++ before all else: std::string is compiled with the program, not taken from the C++ library,
 * so that its memory has a type. */
#ifndef SHADOWIB_PORTABLE_LIBRARY_H
#define SHADOWIB_PORTABLE_LIBRARY_H

#ifdef __cplusplus
#include <bits/c++config.h>
#undef _GLIBCXX_EXTERN_TEMPLATE
#define _GLIBCXX_EXTERN_TEMPLATE -1
#endif

#endif
