/* What the shared library shows. C99 and C++. */
#ifndef KDELTA_API_EXPORT_H_
#define KDELTA_API_EXPORT_H_

#if defined(__GNUC__)
#define KDELTA_API __attribute__((visibility("default")))
#else
#define KDELTA_API
#endif

#endif
