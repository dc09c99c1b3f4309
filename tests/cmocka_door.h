/* SPDX-License-Identifier: Apache-2.0 */
/* CMocka with the headers that it must find before itself. */
#ifndef KVX_TESTS_CMOCKA_DOOR_H
#define KVX_TESTS_CMOCKA_DOOR_H

/* clang-format off */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#endif
