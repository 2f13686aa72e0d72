# What the Java client's suite asks of `make`, as RabbitMQ's own Makefile does it.
CTL = "$(RABBITMQCTL)" -n "$(RABBITMQ_NODENAME)"

stop-rabbit-on-node:
	$(CTL) stop_app

start-rabbit-on-node:
	$(CTL) start_app

restart-app:
	$(CTL) stop_app
	$(CTL) start_app

set-resource-alarm:
	$(CTL) eval 'rabbit_alarm:set_alarm({{resource_limit, $(SOURCE), node()}, []}).'

clear-resource-alarm:
	$(CTL) eval 'rabbit_alarm:clear_alarm({resource_limit, $(SOURCE), node()}).'

.PHONY: stop-rabbit-on-node start-rabbit-on-node restart-app set-resource-alarm clear-resource-alarm
