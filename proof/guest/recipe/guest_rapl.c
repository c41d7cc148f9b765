// SPDX-License-Identifier: GPL-2.0-only
/*
 * RAPL registers for the kernel's own driver. QEMU's emulated CPU has none, so these lie in reserved RAM, which
 * the host shares: it counts the energy, and obeys the limits. All else is intel_rapl_common: zones, units, masks.
 * Unlike the rest of Ballast this file is under the GPL, as the kernel asks of whoever uses that driver.
 */
#include <linux/cpu.h>
#include <linux/err.h>
#include <linux/intel_rapl.h>
#include <linux/io.h>
#include <linux/module.h>

/* `REGISTERS` in ../plant.rs: double words of 64 bits. The number of a register is where it lies. */
#define BASE 0x20000000
#define SIZE 0x1000
#define UNIT 0x100
#define PACKAGE_LIMIT 0x108
#define PACKAGE_ENERGY 0x110
#define PACKAGE_INFO 0x118
#define CORE_LIMIT 0x120
#define CORE_ENERGY 0x128
#define DRAM_LIMIT 0x130
#define DRAM_ENERGY 0x138

static char *registers;
static struct rapl_package *package;

static int read_raw(int cpu, struct reg_action *ra)
{
	if (!ra->reg)
		return -ENODEV;
	ra->value = READ_ONCE(*(u64 *)(registers + ra->reg)) & ra->mask;
	return 0;
}

static int write_raw(int cpu, struct reg_action *ra)
{
	u64 *at = (u64 *)(registers + ra->reg);

	if (!ra->reg)
		return -ENODEV;
	WRITE_ONCE(*at, (READ_ONCE(*at) & ~ra->mask) | ra->value);
	return 0;
}

static struct rapl_if_priv interface = {
	.reg_unit = UNIT,
	.regs[RAPL_DOMAIN_PACKAGE] = { PACKAGE_LIMIT, PACKAGE_ENERGY, 0, 0, PACKAGE_INFO },
	.regs[RAPL_DOMAIN_PP0] = { CORE_LIMIT, CORE_ENERGY },
	.regs[RAPL_DOMAIN_DRAM] = { DRAM_LIMIT, DRAM_ENERGY },
	.limits[RAPL_DOMAIN_PACKAGE] = 2,
	.read_raw = read_raw,
	.write_raw = write_raw,
};

static int __init guest_rapl_init(void)
{
	int failed;

	registers = memremap(BASE, SIZE, MEMREMAP_WB);
	if (!registers)
		return -ENOMEM;

	interface.control_type = powercap_register_control_type(NULL, "intel-rapl", NULL);
	if (IS_ERR(interface.control_type)) {
		failed = PTR_ERR(interface.control_type);
		goto unmap;
	}

	package = rapl_add_package(0, &interface);
	if (!IS_ERR(package)) {
		cpumask_set_cpu(0, &package->cpumask);
		return 0;
	}

	failed = PTR_ERR(package);
	powercap_unregister_control_type(interface.control_type);
unmap:
	memunmap(registers);
	return failed;
}

static void __exit guest_rapl_exit(void)
{
	rapl_remove_package(package);
	powercap_unregister_control_type(interface.control_type);
	memunmap(registers);
}

module_init(guest_rapl_init);
module_exit(guest_rapl_exit);
MODULE_DESCRIPTION("RAPL registers in RAM, for Ballast's guest");
MODULE_LICENSE("GPL");
